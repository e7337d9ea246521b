import multiprocessing.reduction
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from sic.data.parcel import SMALL, Parcel


@dataclass(frozen=True)
class Inner(Parcel):
    values: Tensor


@dataclass
class Outer(Parcel):
    inner: Inner | None
    values: Tensor
    name: str


def parcel(number: int) -> Outer:
    values = torch.arange(number, dtype=torch.float32)
    return Outer(Inner(values.view(-1, 1) > 3), values, "a")


def test_a_parcel_arrives_as_it_was_sent() -> None:
    sent = parcel(10)
    arrived = multiprocessing.reduction.ForkingPickler.loads(multiprocessing.reduction.ForkingPickler.dumps(sent))
    assert isinstance(arrived, Outer) and arrived.inner is not None and sent.inner is not None and arrived.name == "a"
    assert arrived.values.equal(sent.values) and arrived.inner.values.equal(sent.inner.values)
    arrived.values += 1  # and can be written to
    assert arrived.values[0] == 1


@pytest.mark.parametrize(("number", "copied"), [(10, True), (SMALL // 4 + 1, False)])
def test_only_large_tensors_are_shared(number: int, copied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    share = torch.UntypedStorage._share_fd_cpu_
    monkeypatch.setattr(torch.UntypedStorage, "_share_fd_cpu_", lambda it, *a: made.append(it) or share(it, *a))
    multiprocessing.reduction.ForkingPickler.dumps(Outer(None, torch.zeros(number), "a"))
    assert not made if copied else made
