"""The models in a comparison: trained by `sic compare`, or finished runs."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from json import loads
from pathlib import Path
from typing import Any

from sic.cli.console import Talker
from sic.cli.jobs import Job
from sic.cli.options import explain_with
from sic.errors import SicError
from sic.settings import Settings, named, table

RUNS = "runs"
"""The folder of the trainings."""


@dataclass(frozen=True)
class Entry:
    """A trained model in the comparison, and its attribution method."""

    name: str
    folder: Path
    seed: int
    attribution: str | None = None


EVERY = "all"
"""METHOD:all or RUN:all: one entry for each attribution method."""


def methods_of(text: str) -> list[str]:
    """The methods that `--train` names, METHOD or METHOD:ATTRIBUTION.

    >>> methods_of("sic, protopnet:all")
    ['sic', 'protopnet:enlarged', 'protopnet:box']
    """
    from sic.methods import method

    names = []
    for name in text.split(","):
        known, _, way = name.strip().partition(":")
        ways = method(known).attributions if way == EVERY else (way,)
        names += [f"{known}:{each}" if each else known for each in ways or ("",)]
    return list(dict.fromkeys(names))


def seeds_of(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise SicError(f"--seeds must be whole numbers separated by commas, not {text!r}.") from None
    if len(set(found)) < len(found):
        raise SicError(f"--seeds {text} contains a seed twice.")
    return found


def settings_of_methods(special: list[str], methods: list[str]) -> dict[str, dict[str, Any]]:
    """The settings in `--set` of each method (METHOD or METHOD:ATTRIBUTION)."""
    result: dict[str, dict[str, Any]] = {name: {} for name in methods}
    for text in special:
        method, colon, rest = text.partition(":")
        setting, equals, value = rest.partition("=")
        chosen = [name for name in methods if name.partition(":")[0] == method]
        if not (colon and equals and setting and chosen):
            raise SicError(f"--set {text} must be METHOD:SETTING=VALUE, with a method that --train names.")
        for each in chosen:
            result[each][named(setting)] = read_setting(named(setting), value.strip())
    return result


def training_jobs(names: list[str], seeds: list[int], special: list[str], out: Path, flags: list[str]) -> list[Job]:
    """A process for every method and seed that is not trained yet."""
    result = []
    methods = dict.fromkeys(name.partition(":")[0] for name in names)
    for seed in seeds:
        for method in methods:
            folder = out / RUNS / f"{method}-seed{seed}"
            if _is_trained(folder):
                continue
            ways = ",".join(name for name in names if name.partition(":")[0] == method)
            own = [part for text in special if text.partition(":")[0] == method for part in ("--set", text)]
            arguments = ["compare", "--train", ways, "--seeds", str(seed), *own, *flags, "--part"]
            result.append(Job(f"{method}, seed {seed}", partial(list, arguments), folder.with_suffix(".log")))
    return result


def read_setting(name: str, text: str) -> Any:
    """The value of a setting: a number, true or false, else the text itself; None for an empty text.

    >>> read_setting("lr", "1e-3"), read_setting("relu", "False"), read_setting("weights", "2024")
    (0.001, False, '2024')
    """
    option = table().get(name)
    if option is not None and option.type is str:
        return text or None
    try:
        return loads(text.lower() if text in ("True", "False") else text) if text else None
    except ValueError:
        return text


def trained(
    methods: dict[str, dict[str, Any]], data: str, run: dict[str, Any], seeds: list[int], out: Path, talker: Talker
) -> list[Entry]:
    """Train the methods that are not finished, with the settings of each, in `out/runs/METHOD-seedN`.

    `run`: options for opening the data and for the devices, the same for all methods.
    """
    entries = []
    for seed in seeds:  # seed by seed, so that methods can be compared after each of them
        for name in chain(*teachers_first(methods)):
            said = methods[name]
            method, _, attribution = name.partition(":")
            folder = out / RUNS / f"{method}-seed{seed}"
            teacher, said = said.get("teacher"), with_teacher(said, seed, out)
            if said.get("teacher") != teacher and not _is_trained(Path(said["teacher"])):
                raise SicError(
                    f"--set {method}:teacher={teacher} needs a trained {teacher} in {out / RUNS}; add {teacher} to "
                    "--train, or name a model directory."
                )
            _train(method, seed, folder, data, said, run, talker)
            if attribution:
                from sic.model import load

                explain_with(load(folder), attribution)  # fails before the others are trained
            entries.append(Entry(name, folder, seed, attribution or None))
    order = list(methods)
    return sorted(entries, key=lambda entry: (order.index(entry.name), seeds.index(entry.seed)))


def teachers_first(methods: dict[str, dict[str, Any]]) -> tuple[list[str], list[str]]:
    """The names of the methods that others imitate, by the settings of each, and the names of the rest.

    >>> teachers_first({"sic": {"teacher": "blackbox"}, "blackbox:grad-cam": {}})
    (['blackbox:grad-cam'], ['sic'])
    """
    teachers = {said.get("teacher") for said in methods.values()}
    first = [name for name in methods if name.partition(":")[0] in teachers]
    return first, [name for name in methods if name not in first]


def with_teacher(said: dict[str, Any], seed: int, out: Path) -> dict[str, Any]:
    """Settings in which a teacher that is named as a method is the model of that method with the same seed.

    >>> with_teacher({"lr": 1e-3, "teacher": "blackbox"}, 2, Path("compared"))
    {'lr': 0.001, 'teacher': 'compared/runs/blackbox-seed2'}
    """
    from sic.methods import METHODS

    teacher = said.get("teacher")
    return said | {"teacher": str(out / RUNS / f"{teacher}-seed{seed}")} if teacher in METHODS else said


def _is_trained(folder: Path) -> bool:
    """Whether the folder holds a model with figures, which a fit measures last."""
    from sic.directory import CONFIG, read_config

    return (folder / CONFIG).is_file() and bool(read_config(folder)[0].figures)


def _train(
    method: str, seed: int, folder: Path, data: str, said: dict[str, Any], run: dict[str, Any], talker: Talker
) -> None:
    from sic.directory import RUN, read_run
    from sic.fitting import fit

    resume = (folder / RUN).is_file()
    if resume:
        before, now = Path(read_run(folder)["data"]["opened_with"]["where"]), Path(data).resolve()
        if str(before) != data and now not in (before, *before.parents) and before not in now.parents:
            raise SicError(f"{folder} was trained on {before}, not on {data}; choose another --out.")
    if resume and _is_trained(folder):
        from sic.training import recorded_settings

        recorded_settings(folder, said | {"seed": seed})  # raises an error if one differs
        talker.say(f"{folder} is finished.")
        return
    talker.say(f"{'Continuing' if resume else 'Training'} {method}, seed {seed} → {folder}")
    fit(data, folder, resume=resume, reporter=talker, method=method, seed=seed, **run, **said)


def finished(runs: list[str]) -> list[Entry]:
    """Entries of finished runs, named by their method and, if there are several, their backbone.

    Entries of one name are one method with several seeds; where runs differ in more than their seeds, the folder is
    part of the name.
    """
    from sic.directory import read_config
    from sic.methods import method

    found = []
    for text in runs:
        name, equals, rest = text.rpartition("=")
        path, colon, attribution = rest.rpartition(":")
        folder, way = (Path(path), attribution) if colon and not Path(rest).exists() else (Path(rest), None)
        config, _ = read_config(folder)
        ways = method(config.method).attributions or (None,) if way == EVERY else (way,)
        for each in ways:
            entry = Entry(
                config.method + (f":{each}" if each else ""), folder, int(config.training.get("seed", 0)), each
            )
            said = f"{name}:{each}" if each and way == EVERY else name
            found.append((said if equals else None, config, entry))
    several = len({config.backbone for _, config, _ in found}) > 1
    trainings: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    entries = []
    for own, config, entry in found:
        entries.append(replace(entry, name=own or (f"{entry.name} {config.backbone}" if several else entry.name)))
        trainings[entries[-1].name].append(config.training)
    entries = [
        entry if _only_seeds_differ(trainings[entry.name]) else replace(entry, name=f"{entry.name} {entry.folder}")
        for entry in entries
    ]
    if len({(entry.name, entry.seed) for entry in entries}) < len(entries):
        raise SicError("A run is named twice; give the second a name of its own: NAME=RUN.")
    return entries


def _only_seeds_differ(trainings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the settings of trainings are those of one method with different seeds."""
    seeds = {training.get("seed", 0) for training in trainings}
    others = [_but_for_its_seed(training) for training in trainings]
    return len(seeds) == len(trainings) and all(each == others[0] for each in others)


def _but_for_its_seed(training: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded settings of a training that affect its result, without its seed, also that of its teacher.

    Records of older versions lack later settings, whose defaults are what sic did then, and have the parts of
    `preprocessing` in one.

    >>> _but_for_its_seed({"seed": 2, "teacher": "compared/runs/blackbox-seed2"})["teacher"]
    'compared/runs/blackbox-seed'
    """
    found = {**training, **training.get("preprocessing", {})}
    found = {name: found.get(name, getattr(Settings, name, None)) for name in table()}
    found["teacher"] = re.sub(r"seed\d+", "seed", found["teacher"] or "")
    return {name: value for name, value in found.items() if name not in ("seed", "compared", "compiled")}
