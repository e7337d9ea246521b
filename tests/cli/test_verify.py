from pathlib import Path

from sic.cli.verify import _some


def test_a_limit_draws_from_all_classes() -> None:
    """Files come class by class: the first ones would show one class only."""
    files = [Path(f"{label}/{number:02d}.png") for label in range(5) for number in range(20)]
    chosen = _some(files, 30, seed=0)
    assert len(chosen) == len(set(chosen)) == 30 and set(chosen) <= set(files)
    assert {file.parent.name for file in chosen} == {"0", "1", "2", "3", "4"}
    assert chosen == _some(files, 30, seed=0) != _some(files, 30, seed=1)
    assert _some(files, None, 0) == _some(files, 100, 0) == files
