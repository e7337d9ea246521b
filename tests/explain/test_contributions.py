"""Contributions to supports, latent units and inner neurons."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sic import backbones
from sic.errors import SicError
from sic.explain import contributions as module
from sic.explain import latent_contributions, negative_share, neuron_contributions, support_contributions
from sic.methods import SIC, Contributions
from tests.models import norms_take_the_next_batch

SIZE = 24
LABELS = [0, 0, 1, 2]


def photos(number: int) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return F.interpolate(
        torch.rand(number, 3, 6, 6, generator=generator, dtype=torch.double), (SIZE, SIZE), mode="bilinear"
    )


def build(backbone: str) -> SIC:
    """In evaluation mode; the supports are the latents of `photos(4)`."""
    torch.manual_seed(0)
    model = SIC(backbones.create(backbone), 3, len(LABELS), latent=16, temperature=0.5).double()
    norms_take_the_next_batch(model)
    with torch.no_grad():
        model.train().encoder(photos(8))
        model.eval().set_supports(model.encoder(photos(4)), torch.tensor(LABELS))
    return model


@pytest.fixture(scope="module", params=["resnet_tiny", "vit_small"])
def model(request: pytest.FixtureRequest) -> SIC:
    return build(request.param)


@pytest.fixture(scope="module")
def resnet() -> SIC:
    return build("resnet_tiny")


@pytest.fixture(scope="module")
def vit() -> SIC:
    return build("vit_small")


def activation(model: SIC, layer: str, images: Tensor) -> Tensor:
    """The output of a layer in an ordinary forward pass."""
    caught: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda _, __, output: caught.append(output))
    with torch.no_grad():
        model(images)
    handle.remove()
    return caught[0]


def assert_complete(contributions: Contributions) -> None:
    total = contributions.maps.sum(dim=(-2, -1)) + contributions.constant
    torch.testing.assert_close(total, contributions.value, rtol=1e-9, atol=1e-12)


def test_a_support_is_made_of_its_own_length(model: SIC) -> None:
    own = support_contributions(model, photos(4), range(4))
    torch.testing.assert_close(own.value, torch.linalg.vector_norm(model.support_vectors, dim=1))
    assert own.maps.shape == (4, SIZE, SIZE)
    assert own.weights.shape == (4, 6, SIZE, SIZE)
    assert_complete(own)


def test_supports_may_be_a_few_in_any_order(model: SIC) -> None:
    own = support_contributions(model, photos(4), range(4))
    some = support_contributions(model, photos(4)[[3, 1]], [3, 1])
    torch.testing.assert_close(some.maps, own.maps[[3, 1]], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(some.value, own.value[[3, 1]])


def test_many_supports_are_taken_in_chunks(resnet: SIC, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = support_contributions(resnet, photos(4), [0, 1, 2, 3])
    monkeypatch.setattr(module, "images_at_once", lambda *_: 3)
    chunked = support_contributions(resnet, photos(4), [0, 1, 2, 3])
    for part in ("maps", "weights", "value", "constant"):
        torch.testing.assert_close(getattr(chunked, part), getattr(whole, part), rtol=1e-9, atol=1e-12)


def test_an_image_that_is_not_the_support_has_less_to_show(resnet: SIC) -> None:
    other = support_contributions(resnet, photos(6)[5:], [2])
    with torch.no_grad():
        latent = resnet.encoder(photos(6)[5:])[0]
    v = resnet.support_vectors[2]
    expected = (latent @ v / v.norm()).abs() * (latent @ v / v.norm()) / latent.norm()
    torch.testing.assert_close(other.value[0], expected)
    assert other.value[0] < latent.norm()


def test_units_of_the_latent_add_up(model: SIC) -> None:
    units = [3, 0, 3, 15]
    explained = latent_contributions(model, photos(2), units)
    with torch.no_grad():
        torch.testing.assert_close(explained.value, model.encoder(photos(2))[:, units])
    assert explained.maps.shape == (2, 4, SIZE, SIZE)
    assert_complete(explained)
    assert torch.equal(explained.maps[:, 0], explained.maps[:, 2])


def test_a_dead_unit_has_an_empty_map(resnet: SIC) -> None:
    with torch.no_grad():
        dead = (resnet.encoder(photos(1))[0] == 0).nonzero()[:, 0].tolist()
        alive = (resnet.encoder(photos(1))[0] > 0).nonzero()[:, 0].tolist()
    assert (latent_contributions(resnet, photos(1), dead).maps == 0).all()
    assert (latent_contributions(resnet, photos(1), alive).maps.abs().amax(dim=(-2, -1)) > 0).all()


@pytest.mark.parametrize(
    "layer", ["encoder.backbone.network.0", "encoder.backbone.network.5", "encoder.backbone.network.5.path.0"]
)
def test_a_neuron_of_a_convolution(resnet: SIC, layer: str) -> None:
    channel = activation(resnet, layer, photos(2))[:, 3]
    everywhere = neuron_contributions(resnet, photos(2), layer, 3)
    torch.testing.assert_close(everywhere.value, channel.sum(dim=(1, 2))[:, None])
    assert_complete(everywhere)
    one_place = neuron_contributions(resnet, photos(2), layer, 3, position=(2, 4))
    torch.testing.assert_close(one_place.value, channel[:, 2, 4][:, None])
    assert one_place.maps.shape == (2, 1, SIZE, SIZE)
    assert_complete(one_place)


def test_a_neuron_sees_its_receptive_field_only(resnet: SIC) -> None:
    """The stem has 6×6 kernels with stride 2 and padding 2."""
    explained = neuron_contributions(resnet, photos(1), "encoder.backbone.network.0", 5, position=(3, 7))
    seen = torch.zeros(SIZE, SIZE, dtype=torch.bool)
    seen[4:10, 12:18] = True
    assert (explained.maps[0, 0][~seen] == 0).all()
    assert (explained.maps[0, 0][seen] != 0).all()


@pytest.mark.parametrize(
    "layer", ["encoder.backbone.network.encoder.1", "encoder.backbone.network.encoder.0.attention.out"]
)
def test_a_neuron_of_tokens_is_summed_over_them(vit: SIC, layer: str) -> None:
    explained = neuron_contributions(vit, photos(2), layer, 7)
    torch.testing.assert_close(explained.value, activation(vit, layer, photos(2))[:, :, 7].sum(dim=1)[:, None])
    assert (explained.constant != 0).all()
    assert_complete(explained)


def test_a_neuron_of_the_projection(model: SIC) -> None:
    explained = neuron_contributions(model, photos(2), "encoder.projection", 2)
    torch.testing.assert_close(explained.value, activation(model, "encoder.projection", photos(2))[:, 2:3])
    assert_complete(explained)


def test_another_thread_may_use_the_model_meanwhile(resnet: SIC) -> None:
    layer = "encoder.backbone.network.3"
    expected = neuron_contributions(resnet, photos(1), layer, 1)
    inside: list[bool] = []

    def interrupt(*_: object) -> None:
        """Just before the layer runs, another thread sends other images through the whole model."""
        if not inside:
            inside.append(True)
            with ThreadPoolExecutor(1) as pool:
                pool.submit(resnet, photos(5)[2:]).result(timeout=600)

    handle = resnet.get_submodule(layer).register_forward_pre_hook(interrupt)
    try:
        got = neuron_contributions(resnet, photos(1), layer, 1)
    finally:
        handle.remove()
    assert inside
    torch.testing.assert_close(got.value, expected.value)
    torch.testing.assert_close(got.maps, expected.maps)


def hooks(model: nn.Module) -> int:
    return sum(len(layer._forward_hooks) for layer in model.modules())


def test_no_hook_stays_behind(resnet: SIC) -> None:
    neuron_contributions(resnet, photos(1), "encoder.backbone.network.3", 1)
    with pytest.raises(SicError, match="unit 10000 does not exist"):
        neuron_contributions(resnet, photos(1), "encoder.backbone.network.3", 10_000)
    assert hooks(resnet) == 0


def test_a_neuron_that_does_not_exist(resnet: SIC, vit: SIC) -> None:
    with pytest.raises(SicError, match="no layer called 'encoder.nowhere'"):
        neuron_contributions(resnet, photos(1), "encoder.nowhere", 0)
    with pytest.raises(SicError, match="encoder.projection has 16 units; unit 16 does not exist"):
        neuron_contributions(resnet, photos(1), "encoder.projection", 16)
    with pytest.raises(SicError, match="has 16 units; unit -1 does not exist"):
        neuron_contributions(resnet, photos(1), "encoder.backbone.network.0", -1)
    with pytest.raises(SicError, match="has 128 units; unit 128 does not exist"):
        neuron_contributions(vit, photos(1), "encoder.backbone.network.encoder.1", 128)


def test_everything_works_in_inference_mode(resnet: SIC) -> None:
    with torch.inference_mode():
        got = [
            support_contributions(resnet, photos(4), [0, 1, 2, 3]),
            latent_contributions(resnet, photos(2), [0, 1]),
            neuron_contributions(resnet, photos(2), "encoder.projection", 2),
        ]
    for contributions in got:
        assert_complete(contributions)


def test_the_negative_share_of_a_map() -> None:
    maps = torch.tensor([[[3.0, -1.0], [0.0, 0.0]], [[-2.0, -2.0], [-1.0, 0.0]], [[1.0, 2.0], [0.0, 4.0]]])
    torch.testing.assert_close(negative_share(maps), torch.tensor([0.25, 1.0, 0.0]))
    torch.testing.assert_close(negative_share(10 * maps), negative_share(maps))
    assert negative_share(torch.zeros(2, 2)).item() == 0
    assert negative_share(maps[:, None].expand(3, 5, 2, 2)).shape == (3, 5)
