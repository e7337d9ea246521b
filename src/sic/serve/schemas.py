"""The answers of the HTTP interface; OpenAPI describes them."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from sic.supports import Action


class Error(BaseModel):
    error: str = Field(examples=["scan.svg cannot be used: it is not one of JPEG, PNG, TIFF, WebP, GIF, BMP or DICOM."])


class Evidence(BaseModel):
    support: int = Field(description="The support's number.", examples=[7])
    name: str = Field(description="Its name: class and number in the class.", examples=["bird 2 #2"])
    label: str = Field(description="Its class.", examples=["bird 2"])
    source: str = Field(description="The training image's id.", examples=["train/2/000214.png"])
    value: float = Field(description="Its contribution to the score of its class.", examples=[2.31])


class Prediction(BaseModel):
    name: str = Field(description="The file's name.", examples=["new.png"])
    labels: list[str] = Field(description="The answer; several or none if images can have several labels.")
    similar_case: bool = Field(description="False if no class reaches 50 %: the image is not similar to any support.")
    promised: bool = Field(description="Whether the promise of the model covers the answer; false if it makes none.")
    nearest: str = Field(description="The class of the highest probability.", examples=["bird 2"])
    probabilities: dict[str, float] = Field(
        description="One per class. They need not add up to 1, unless the classes are exclusive (see /api/v1/model).",
        examples=[{"bird 1": 0.08, "bird 2": 0.97}],
    )
    evidence: list[Evidence] = Field(description="All supports, the most similar first.")


class Predictions(BaseModel):
    model: str = Field(examples=["demo"])
    images: list[Prediction]


class Region(BaseModel):
    evidence: float = Field(description="What the region adds.", examples=[0.81])
    centre: list[float] | None = Field(description="x and y in pixels of the model's input.", examples=[[41.5, 60.5]])
    outline: list[list[list[float]]] = Field(description="Closed polygons of points [x, y].")


class Match(BaseModel):
    number: int = Field(description="The same in the image and in all cases; 0 is all that has no match.", examples=[1])
    evidence: float = Field(description="Matches add up to the evidence.", examples=[0.81])
    share: float = Field(examples=[0.35])
    image: Region
    support: Region | None = Field(None, description="Its partner in the support's image, if that is kept.")


class Difference(BaseModel):
    number: int = Field(description="As in `regions`; 0 is the rest.", examples=[1])
    evidence: float = Field(description="What the region adds to the score of the class.", examples=[0.81])
    versus: float = Field(description="What it adds to the score of the other class.", examples=[0.12])
    difference: float = Field(examples=[0.69])


class Contrast(BaseModel):
    label: str = Field(alias="class", examples=["bird 2"])
    versus: str = Field(description="The class that it is compared with.", examples=["bird 5"])
    difference: float = Field(description="Of the two scores.", examples=[3.1])
    regions: list[Difference] = Field(description="Their differences add up to that of the scores.")


class SupportEvidence(BaseModel):
    support: int = Field(description="The support's number.", examples=[7])
    name: str = Field(description="Its name: class and number in the class.", examples=["bird 2 #2"])
    source: str = Field(examples=["train/2/000214.png"])
    evidence: float = Field(description="Its contribution to the score.", examples=[2.31])
    shown: bool = Field(description="Whether the model kept the support's image.")
    strength: float | None = Field(
        None, description="Evidence is strength times likeness; the strength is the image's.", examples=[9.05]
    )
    likeness: float | None = Field(None, description="From 0 to 1.", examples=[0.26])
    pixels: float | None = Field(
        None, description="Sum of `map`: the part of the evidence that comes from pixels.", examples=[2.31]
    )
    map: str | None = Field(None, description="H×W contributions to this evidence: base64 of little-endian float32.")
    regions: list[Match] | None = Field(None, description="The evidence, region by region; with `matches`.")


class Step(BaseModel):
    label: str = Field(examples=["like bird 2 #2"])
    value: float = Field(examples=[2.31])
    kind: Literal["start", "for", "against", "score"]


class Specific(BaseModel):
    value: float = Field(description="The score minus the mean score of all classes.", examples=[6.1])
    pixels: float = Field(description="Sum of `map`.", examples=[6.1])
    constant: float = Field(description="The part that does not depend on the image.", examples=[0.0])
    residual: float = Field(description="value - pixels - constant: 0 up to rounding.", examples=[4e-7])
    map: str | None = Field(None, description="H×W signed contributions to the value: base64 of little-endian float32.")


class ClassExplanation(BaseModel):
    name: str = Field(examples=["bird 2"])
    logit: float = Field(description="The score.", examples=[3.52])
    probability: float = Field(examples=[0.97])
    verdict: str = Field(examples=["above 0: yes"])
    limit: float = Field(
        description="The score with which this class has a probability of 50 %, where classes do not compete.",
        examples=[0.0],
    )
    pixels: float = Field(description="Sum of `map`.", examples=[5.92])
    constant: float = Field(
        description="The part that does not depend on the image: the bias and positional codes.", examples=[-2.4]
    )
    residual: float = Field(description="logit - pixels - constant: 0 up to rounding.", examples=[4e-7])
    steps: list[Step] = Field(description="The sum behind the score; the last step is the score.")
    map: str | None = Field(None, description="H×W signed contributions to the score: base64 of little-endian float32.")
    picture: str | None = Field(None, description="The colours that the model responds to: transparent PNG in base64.")
    specific: Specific | None = Field(None, description="What the class does not share; with `specific`.")
    regions: list[Match] | None = Field(None, description="The evidence of all supports, region by region.")
    words: str | None = Field(None, description="The regions that match, in one sentence; with `matches`.")
    cases: list[SupportEvidence]


class Explanation(BaseModel):
    name: str = Field(examples=["new.png"])
    labels: list[str]
    similar_case: bool
    promised: bool = Field(description="Whether the promise of the model covers the answer; false if it makes none.")
    nearest: str = Field(examples=["bird 2"])
    probabilities: dict[str, float]
    bias: float = Field(examples=[-2.4])
    truth: str | None = Field(description="The true class of a held-out image or of a support.")
    right: bool | None = Field(None, description="Whether the answer (or nearest class) of a held-out image is right.")
    text: str = Field(description="The explanation in words.")
    residual: float = Field(description="The largest residual of the classes.", examples=[4e-7])
    size: list[int] = Field(description="H and W of the maps.", examples=[[96, 96]])
    image: str | None = Field(None, description="The image at the model's input resolution: PNG in base64.")
    contrast: Contrast | None = Field(None, description="Two classes, region by region; with `versus`.")
    classes: list[ClassExplanation]


class Explanations(BaseModel):
    model: str = Field(examples=["demo"])
    images: list[Explanation]


class Support(BaseModel):
    support: int = Field(examples=[7])
    name: str = Field(description="Its name: class and number in the class.", examples=["bird 2 #2"])
    label: str = Field(examples=["bird 2"])
    source: str = Field(examples=["train/2/000214.png"])
    shown: bool = Field(description="Whether the model kept its image.")
    norm: float = Field(description="Length of its vector.", examples=[14.2])


class Supports(BaseModel):
    model: str = Field(examples=["demo"])
    supports: list[Support]


class Overview(BaseModel):
    model: str = Field(examples=["demo"])
    classes: list[str]
    temperature: float
    bias: float
    images: int = Field(description="The number of held-out images embedded so far.")
    supports: list[Support]
    support_similarity: list[list[float | None]] = Field(description="C×C, mean similarity of the classes' supports.")
    image_similarity: list[list[float | None]] | None = Field(
        description="C×C, mean similarity of held-out images of the row's class to the column's supports."
    )
    support_silhouette: dict[str, Any] | None
    image_silhouette: dict[str, Any] | None
    projection: dict[str, Any] = Field(description="Latents in the plane: `points` with x, y, labels, id, support.")


class TestImage(BaseModel):
    test: int = Field(description="Its number: /api/v1/explain?test=…", examples=[3])
    name: str = Field(examples=["test/0/000003.png"])
    truth: list[str] = Field(examples=[["bird 0"]])
    answer: list[str] | None = Field(description="null until the image is classified.")
    right: bool | None = None
    similar_case: bool | None = None


class TestImages(BaseModel):
    set: str = Field(examples=["test images of birds"])
    images: list[TestImage]
    matching: int = Field(description="The number of matching images; `images` has some of them.")
    looked_at: int
    of: int


class RelyingImage(TestImage):
    evidence: float = Field(description="The contribution of the support to the score.")
    needed: bool = Field(description="Whether the answer would change without this support.")


class Relying(Support):
    looked_at: int = Field(description="The number of held-out images classified so far.")
    of: int
    answers: int = Field(description="The number of images that are answered with this class.")
    needed: int = Field(description="The number of them whose answer would change without this support.")
    images: list[RelyingImage]


class Description(BaseModel):
    name: str = Field(examples=["demo"])
    task: str = Field(description="single, or multi: several labels per image.", examples=["single"])
    classes: list[str]
    size: int = Field(description="Side of the model's input in pixels.", examples=[96])
    fit: str = Field(examples=["squash"])
    backbone: str = Field(examples=["resnet_small"])
    method: str = Field(examples=["sic"])
    method_title: str = Field(description="The method's name for people.", examples=["SIC"])
    by_similarity: bool = Field(description="Whether a score is a sum of similarities to cases.")
    exclusive: bool = Field(description="Whether probabilities add up to 1; otherwise each class is judged by itself.")
    bias: float = Field(examples=[-2.4])
    floor: float = Field(description="The probability of a class without any evidence.", examples=[0.083])
    threshold: float = Field(
        description="The score with which the nearest class has a probability of 50 %.", examples=[0.0]
    )
    temperature: float = Field(examples=[1.0])
    supports: int = Field(description="The number of cases; 0 for a method without cases.", examples=[36])
    figures: dict[str, Any] = Field(description="Metrics on images that it was not trained on.")
    quality: dict[str, Any] | None = Field(
        description="The same in words: `kind` of images, `lines`, `caution`, and `promise`, or that there is none."
    )
    promise: str | None = Field(description="What the model promises about mistakes; null if it makes no promise.")
    terms: str | None = Field(description="The terms of the weights that the model started from.")
    tests: dict[str, Any] | None = Field(
        description="The held-out images: `name`, `kind` (test or validation images), `caution` and their number."
    )


class EditRequest(BaseModel):
    action: Action = Field(examples=["drop"])
    support: int | str | None = Field(
        None,
        description="For all but add and reselect: the id of the support's image, its name, or its number.",
        examples=[7],
    )
    source: str | None = Field(
        None,
        description="The id of the support's image. An edit by number or name is refused if it has changed.",
    )
    image: str | None = Field(None, description="replace, add: the id of the training image.")
    label: str | None = Field(None, description="add, reselect: the class.")


class ClinicState(BaseModel):
    allowed: bool = Field(description="Whether supports can be edited on this server.")
    state: Literal["closed", "opening", "open", "failed"]
    done: int = Field(description="The number of images embedded so far.")
    total: int
    error: str | None
    problems: list[str] = []
    figures: dict[str, Any] = Field({}, description="Metrics on the validation images now.")
    supports: list[dict[str, Any]] = []
    history: list[dict[str, Any]] = []
    can_undo: int = Field(0, description="The number of edits that can be undone.")


class Candidates(BaseModel):
    total: int
    images: list[dict[str, Any]] = Field(description="Nearest first: id, distance, and whether it is a support.")


class Outcome(BaseModel):
    labels: list[str] = Field(description="The classes whose supports change.")
    removed: list[str]
    added: list[str]
    before: dict[str, Any] = Field(description="Metrics on the validation images.")
    after: dict[str, Any]
    flips: list[dict[str, Any]] = Field(description="Validation images whose answer changes.")
