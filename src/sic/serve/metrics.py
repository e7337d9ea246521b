"""What the server has done, for Prometheus. No names, no contents."""

from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds."""

disable_created_metrics()


class Metrics:
    """Requests by route and status, their duration, images seen, and gauges."""

    def __init__(self, waiting: Callable[[], float]) -> None:
        """`waiting`: gives the number of requests that are worked on or wait for it."""
        self._registry = CollectorRegistry()
        self._requests = Counter("sic_requests", "Requests answered.", ["route", "status"], registry=self._registry)
        self._images = Counter("sic_images", "Images predicted or explained.", ["what"], registry=self._registry)
        self._seconds = Histogram(
            "sic_request_seconds", "Duration of requests.", ["route"], buckets=BUCKETS, registry=self._registry
        )
        Gauge("sic_waiting", "Requests that are worked on or wait for it.", registry=self._registry).set_function(
            waiting
        )
        Gauge("sic_resident_bytes", "Memory of the server.", registry=self._registry).set_function(resident_bytes)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def images(self, what: str, number: int) -> None:
        """Count images that were predicted or explained."""
        self._images.labels(what).inc(number)

    def text(self) -> str:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry).decode()


def resident_bytes() -> float:
    """Memory of this process; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    import resource

    return float(pages * resource.getpagesize())
