"""What the server has done, in Prometheus' text format. No names, no contents."""

import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds."""


class Metrics:
    """Requests by route and status, their duration, and images seen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._durations: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._images: Counter[str] = Counter()

    def request(self, route: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[route, status] += 1
            self._seconds[route] += seconds  # type: ignore[assignment]
            for bucket in (*BUCKETS, float("inf")):
                if seconds <= bucket:
                    self._durations[route, bucket] += 1

    def images(self, what: str, number: int) -> None:
        with self._lock:
            self._images[what] += number

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """`gauges`: name → (help, value now)."""
        lines = ["# HELP sic_requests_total Requests answered.", "# TYPE sic_requests_total counter"]
        with self._lock:
            for (route, status), number in sorted(self._requests.items()):
                lines.append(f'sic_requests_total{{route="{route}",status="{status}"}} {number}')
            lines += ["# HELP sic_images_total Images predicted or explained.", "# TYPE sic_images_total counter"]
            lines += [f'sic_images_total{{what="{what}"}} {number}' for what, number in sorted(self._images.items())]
            lines += ["# HELP sic_request_seconds Duration of requests.", "# TYPE sic_request_seconds histogram"]
            for route in sorted(self._seconds):
                for bucket in BUCKETS:
                    count = self._durations[route, bucket]
                    lines.append(f'sic_request_seconds_bucket{{route="{route}",le="{bucket:g}"}} {count}')
                count = self._durations[route, float("inf")]
                lines.append(f'sic_request_seconds_bucket{{route="{route}",le="+Inf"}} {count}')
                lines.append(f'sic_request_seconds_sum{{route="{route}"}} {self._seconds[route]:.6f}')
                lines.append(f'sic_request_seconds_count{{route="{route}"}} {count}')
        for name, (help_text, value) in gauges.items():
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def resident_bytes() -> float:
    """Memory of this process; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    import resource

    return float(pages * resource.getpagesize())
