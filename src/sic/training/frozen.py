"""A fit on a frozen network: every image is embedded once, then the projection is trained on these features in seconds.

Where the network was taught classes (such as those of ImageNet) that already tell the training images apart, each
latent unit starts as the direction of one of them. Otherwise it starts as the direction from the mean training image to
one training image. Random directions would be negative for most images, because pooled features share a large mean:
their units would be dead from the start.
"""

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sic.bcos import bcos_similarity
from sic.data.images import Preprocessing
from sic.data.labels import Targets, split_targets
from sic.errors import SicError
from sic.machines import fast_products
from sic.methods import SIC, device_of
from sic.predictions import Answers
from sic.settings import RECIPES, Settings
from sic.supports import select_how
from sic.training.base import Candidates
from sic.training.batches import Views, view_loader
from sic.training.data import Images, TrainingData
from sic.training.history import Reporter
from sic.training.memory import check_features
from sic.training.penalties import CHOSEN_FOR, query_grids
from sic.training.sic import Members, SICTraining
from sic.training.start import taught_directions

STEPS = 1000
"""Fewest steps: after 300, much more evidence was misplaced (results/misplaced.json)."""
PASSES = 40
"""Over the training images: 300 steps were too few for 37 classes (results/distill/pets37.json)."""
LONG = 3000
"""Steps beyond which `FEWER_PASSES` are enough."""
FEWER_PASSES = 5
KNOWN = 0.5
"""How many of the training images must be right before any training for units to start as classes that the network was
taught, as a share of those that the commonest class leaves wrong: 84 % are among 120 breeds of dogs, which gain 4
points, 30 % among 200 species of birds, which lose 3 (results/taught.json)."""
TAUGHT_RATE = 0.1
"""Share of the learning rate for units that start as classes: they have less to learn than those that start as images,
and forget what they were taught at the full rate."""
ENOUGH = 0.4
"""Share of the training images that must get evidence for their class: 27 % did in a fit of 37 species of birds, which
gained from competition, 99 % in one of 12 breeds of dogs, which was good without."""


def fit_projection(
    module: SICTraining, images: TrainingData, settings: Settings, workers: int, reporter: Reporter
) -> None:
    """Train the projection of a SIC classifier, choose T and its supports; the backbone stays as it is."""
    if settings.recipe != "frozen":  # the given rate and batches are those of the training that follows
        recipe = RECIPES["frozen"]
        settings = replace(settings, lr=recipe.lr, batch_size=min(recipe.batch_size, len(images.train)))
    module.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    targets = Targets(images.train.samples, module.classifier.classes)
    features = _embedded(module, images.train, targets, settings, workers, reporter)
    every = targets[np.arange(len(features))]
    fit_features(module, features, every, images.candidates, settings, reporter, taught_directions(settings.weights))
    if module.classifier.encoder.local and settings.inference_supports != "centroid":
        _embed_supports(module, Views(images.train, targets, Preprocessing.of(settings)))
    module.cpu()


def fit_features(
    module: SICTraining,
    features: Tensor,
    targets: Tensor,
    candidates: Candidates,
    settings: Settings,
    reporter: Reporter,
    known: Tensor | None = None,
) -> None:
    """`fit_projection` on features of the encoder and targets N×C. `known`: directions of classes that the network was
    taught, K×F.

    With many classes, or classes that look alike, nearly all answers are no, and binary cross-entropy is content with
    hardly any evidence: a fit of 200 species of birds had an accuracy of 22 %. If most images are left without
    evidence for their class, the fit begins again with softmax cross-entropy beside it, which asks for differences
    (65 %; results/many_classes.json). More than 37 classes compete from the start. Where competition is not needed, it
    is not used: without it, evidence lies on the object more often, and the cases of a class differ more.
    """
    classifier, competing = module.classifier, RECIPES[settings.recipe].competing
    if module.multi_label or classifier.loss == "ce":  # several classes can be right; they compete anyway
        competing = 0.0
    for weight in (competing,) if classifier.classes > CHOSEN_FOR else (0.0, competing):
        module.competing = weight
        taught = _begin(module, features, targets, candidates, settings, known, reporter)
        module.sharpened = taught and RECIPES[settings.recipe].sharpened
        steps = STEPS if module.sharpened and weight else _steps(len(features), settings.batch_size)
        with fast_products():
            _optimise(module, features, targets, candidates, settings, steps, TAUGHT_RATE if taught else 1.0, reporter)
        latents = projected(classifier, features)
        _choose_supports(module, latents, candidates, settings)
        if weight == competing or _with_evidence(classifier, latents, targets) >= ENOUGH:
            break
        reporter.say("Most training images get no evidence for their class; the fit begins again, and classes compete.")


def _begin(
    module: SICTraining,
    features: Tensor,
    targets: Tensor,
    candidates: Candidates,
    settings: Settings,
    known: Tensor | None,
    reporter: Reporter,
) -> bool:
    """Give the units their first directions, and the classifier T; returns whether units start as taught classes."""
    classifier = module.classifier

    def start_as(directions: Tensor | None) -> None:
        _start(module, features, targets, directions, settings.seed)
        classifier.temperature = _temperature(module, features, candidates, settings)

    if known is not None and known.shape[1] == classifier.encoder.projection.in_features and not module.multi_label:
        start_as(known)
        latents = projected(classifier, features)
        _choose_supports(module, latents, candidates, settings)
        right, commonest = _right(classifier, latents, targets), float(targets.nan_to_num(0).mean(dim=0).max())
        if right - commonest >= KNOWN * (1 - commonest):
            reporter.say(
                f"Latent units start as classes that the network already knows: they classify {right:.0%} of the "
                "training images correctly before any training."
            )
            return True
    start_as(None)
    return False


def _choose_supports(module: SICTraining, latents: Tensor, candidates: Candidates, settings: Settings) -> None:
    """Give the classifier the supports that its latents of the training images suggest."""
    chosen = select_how(
        settings.inference_supports,
        latents.numpy(),
        candidates,
        settings.supports_per_class,
        settings.seed,
        module.device if module.on_gpu else None,
    )
    module.support_rows.copy_(torch.from_numpy(chosen.rows))
    module.classifier.set_supports(torch.from_numpy(chosen.vectors), torch.from_numpy(chosen.classes))


@torch.no_grad()
def _right(classifier: SIC, latents: Tensor, targets: Tensor) -> float:
    """The share of images whose class has the highest score, with the supports of the classifier."""
    logits = classifier.logits(classifier.evidence(latents.to(device_of(classifier)))).cpu()
    return Answers(logits, "single", classifier.loss).main_score(targets.cpu())


@torch.no_grad()
def _with_evidence(classifier: SIC, latents: Tensor, targets: Tensor) -> float:
    """The share of images whose own class has a score of at least 0, with the supports of the classifier."""
    own = classifier.logits(classifier.evidence(latents.to(device_of(classifier)))).cpu()[targets.cpu() == 1]
    return float((own >= 0).float().mean())


@torch.no_grad()
def _embedded(
    module: SICTraining, images: Images, targets: Targets, settings: Settings, workers: int, reporter: Reporter
) -> Tensor:
    """Features of all images as the model sees them; with local units in 16 bits, because there are many of them."""
    encoder = module.classifier.encoder
    few = None if module.on_gpu else 16
    loader = view_loader(Views(images, targets, Preprocessing.of(settings)), workers, few)
    found, done = torch.empty(0), 0
    for views, _ in loader:
        features = encoder.features(views.to(module.device).float() / 255)
        if not features.isfinite().all():
            raise SicError("The network's features are not finite; its weights are damaged.")
        features = (features.bfloat16() if encoder.local else features).cpu()
        if done == 0:
            check_features(len(images), features[0].nbytes, reporter)
            found = features.new_empty(len(images), *features.shape[1:])
        found[done : done + len(features)] = features
        done += len(features)
        reporter.advance("embedding images", done, len(images))
    return found


@torch.no_grad()
def _embed_supports(module: SICTraining, views: Views) -> None:
    """Replace the latents of the supports, computed from features in 16 bits, by exact ones."""
    classifier, rows = module.classifier, module.support_rows.tolist()
    images = (views[row][0].to(module.device).float() / 255 for row in rows)
    vectors = torch.cat([classifier.encoder(image[None]) for image in images])
    classifier.set_supports(vectors, classifier.support_classes)


@torch.no_grad()
def projected(classifier: SIC, features: Tensor) -> Tensor:
    """Latents N×d of features, on the CPU; few at a time, because those of every place take much memory."""
    device = device_of(classifier)
    return torch.cat([classifier.encoder.project(some.to(device).float()).cpu() for some in features.split(256)])


@torch.no_grad()
def _start(module: SICTraining, features: Tensor, targets: Tensor, known: Tensor | None, seed: int) -> None:
    """Give every unit a direction to start from: those `known` that tell the classes apart best, then images.

    Args:
        module: Its projection is set.
        features: Of the training images.
        targets: N×C.
        known: Directions of classes that the network was taught, K×F.
        seed: For the images.
    """
    encoder = module.classifier.encoder
    weight = encoder.projection.weight
    pooled = torch.cat([encoder.pooled(some.float()) for some in features.split(256)])
    rows = np.random.default_rng(seed).permutation(len(pooled))
    directions = pooled[np.resize(rows, len(weight))] - pooled.mean(0)
    directions += 1e-3 * directions.std() * torch.randn(directions.shape, generator=torch.Generator().manual_seed(seed))
    if known is not None:
        known = F.normalize(known, dim=1)
        responses = bcos_similarity(pooled, known, encoder.projection.b).relu()
        best = separation(responses, targets).argsort(descending=True)[: len(weight)]
        directions[: len(best)] = known[best]
    weight.copy_(directions / directions.norm(dim=1, keepdim=True).clamp_min(1e-12))


def separation(values: Tensor, targets: Tensor) -> Tensor:
    """How well each of K values tells classes apart: the share of its variance that lies between the classes' means.

    Args:
        values: N×K.
        targets: N×C; unknown ones (NaN) do not count.

    Returns:
        K numbers, 0 where a value is constant.
    """
    truth, _ = split_targets(targets)
    shown = truth.sum(dim=0)
    means = (truth.T @ values)[shown > 0] / shown[shown > 0, None]
    between = (means - means.mean(dim=0)).square().mean(dim=0)
    return between / values.var(dim=0).clamp_min(1e-12)


@torch.no_grad()
def _temperature(module: SICTraining, features: Tensor, candidates: Candidates, settings: Settings) -> float:
    """T at which the supports of a class say the recipe's `own_evidence` for its own images, on average."""
    latents = projected(module.classifier, features)
    own = []
    for members in candidates.values():
        some = latents[list(members[:100])]
        own.append(float(bcos_similarity(some, some, module.classifier.b).mean()))
    number = min(settings.supports_per_class, min(len(members) for members in candidates.values()))
    return max(float(np.mean(own)) * number / RECIPES[settings.recipe].own_evidence, 1e-6)


def _steps(images: int, batch_size: int) -> int:
    """How many steps to train on so many images.

    >>> [_steps(images, 64) for images in (480, 3128, 20_000, 1_000_000)]
    [1000, 1955, 3000, 78125]
    """
    passes = images / batch_size
    return max(STEPS, min(LONG, round(PASSES * passes)), round(FEWER_PASSES * passes))


def _optimise(
    module: SICTraining,
    features: Tensor,
    targets: Tensor,
    candidates: Candidates,
    settings: Settings,
    steps: int,
    rate: float,
    reporter: Reporter,
) -> None:
    """The training step of SIC (queries, random supports of every class) on features in memory, `steps` times; `rate`:
    share of the learning rate."""
    known, features, targets = targets.cpu(), features.to(module.device), targets.to(module.device)
    classifier, rng = module.classifier, np.random.default_rng(settings.seed)
    projection = classifier.encoder.projection
    optimiser = torch.optim.AdamW(projection.parameters(), lr=rate * settings.lr, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    members, number = Members(candidates), settings.supports_per_class
    classes = torch.from_numpy(np.repeat(sorted(candidates), number)).to(module.device)
    for step in range(steps):
        queries = rng.integers(0, len(features), min(settings.batch_size, len(features)))
        supports = members.draw(torch.from_numpy(rng.random((len(candidates), number))))[0].flatten().numpy()
        drawn = features[np.concatenate([queries, supports])].float()
        latents = classifier.encoder.project(drawn)
        vectors = latents[len(queries) :]
        evidence = classifier.evidence(latents[: len(queries)], vectors)
        logits = classifier.logits(evidence, classes)
        wanted = module.wanted(targets[queries])
        loss = module.loss(logits, wanted) + module.competition(logits, wanted, step / steps)
        parts = classifier.encoder.additive(drawn, latents)[: len(queries)]
        grids = query_grids(known[queries], module.multi_label, rng).to(module.device)
        loss = loss + module.penalty(parts, targets[queries], grids, vectors, classes, step / steps)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if (step + 1) % 20 == 0 or step + 1 == steps:
            if not bool(loss.isfinite()):
                raise SicError(f"The loss became NaN or infinite; try a lower --lr (it was {settings.lr:g}).")
            reporter.advance("projection", step + 1, steps, f"loss {loss.item():.3f}")
