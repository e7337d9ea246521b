"""Architectures of torchvision and timm without their classifiers."""

import logging
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlparse
from urllib.request import getproxies

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models import vgg
from torchvision.models.convnext import CNBlock
from torchvision.models.resnet import Bottleneck, ResNet

from sic.backbones.registry import Body, register
from sic.bcos import Halving
from sic.errors import SicError


def _resnet(builder: Callable[[], models.ResNet]) -> Body:
    net = builder()
    parts = OrderedDict(net.named_children())
    features = parts.pop("fc").in_features
    del parts["avgpool"]
    return Body(nn.Sequential(parts), features)


def _densenet(builder: Callable[[], models.DenseNet]) -> Body:
    net = builder()
    net.features.add_module("relu5", nn.ReLU(inplace=True))  # torchvision has it in its forward pass
    return Body(net.features, net.classifier.in_features)


def _convnext(builder: Callable[[], models.ConvNeXt]) -> Body:
    net = builder()
    return Body(net.features, net.classifier[-1].in_features)


@register
def resnet18() -> Body:
    return _resnet(models.resnet18)


@register
def resnet34() -> Body:
    return _resnet(models.resnet34)


@register
def resnet50() -> Body:
    return _resnet(models.resnet50)


def _halving(body: Body) -> list[Any]:
    """The blocks of a ResNet that halve the resolution."""
    return [body.network.get_submodule(f"layer{stage}.0") for stage in (2, 3, 4)]


@register
def resnet50_v1() -> Body:
    """As first published: a stage strides in its first 1×1 convolution (torchvision's strides in the 3×3)."""
    body = _resnet(models.resnet50)
    for block in _halving(body):
        block.conv1.stride, block.conv2.stride = (2, 2), (1, 1)
    return body


def _smooth(builder: Callable[[], models.ResNet]) -> Body:
    """Means of 2×2 pixels wherever the network strides: strides and max pooling draw a grid over contribution maps."""
    body = _resnet(builder)
    body.network.add_module("maxpool", Halving(maximum=True))
    for block in _halving(body):
        strided = "conv2" if hasattr(block, "conv3") else "conv1"
        setattr(block, strided, _halved_first(getattr(block, strided)))
        block.downsample[0] = _halved_first(block.downsample[0])
    return body


def _halved_first(convolution: nn.Conv2d) -> nn.Sequential:
    """The same convolution without its stride, after means of 2×2 pixels."""
    convolution.stride = (1, 1)
    return nn.Sequential(Halving(), convolution)


@register
def resnet50_smooth() -> Body:
    """ResNet50 without strides after the stem. Before it fades, it computes the same as `resnet50_v1`."""
    return _smooth(models.resnet50)


@register
def resnet26_smooth() -> Body:
    """The first two blocks of every stage of `resnet50_smooth`."""
    return _smooth(lambda: ResNet(Bottleneck, [2, 2, 2, 2]))


@register
def resnet18_smooth() -> Body:
    """ResNet18 without strides after the stem."""
    return _smooth(models.resnet18)


@register
def resnet101() -> Body:
    return _resnet(models.resnet101)


@register
def resnet152() -> Body:
    return _resnet(models.resnet152)


@register
def resnext50_32x4d() -> Body:
    return _resnet(models.resnext50_32x4d)


@register
def densenet121() -> Body:
    return _densenet(models.densenet121)


@register
def densenet161() -> Body:
    return _densenet(models.densenet161)


@register
def densenet169() -> Body:
    return _densenet(models.densenet169)


@register
def densenet201() -> Body:
    return _densenet(models.densenet201)


@register
def convnext_tiny() -> Body:
    return _convnext(models.convnext_tiny)


@register
def convnext_base() -> Body:
    return _convnext(models.convnext_base)


def _with_batch_norms(net: models.ConvNeXt) -> models.ConvNeXt:
    """Every layer norm becomes a batch norm, in the blocks before the channels go last."""
    for module in list(net.features.modules()):
        if isinstance(module, CNBlock):
            channels, permute = module.layer_scale.shape[0], module.block[1]
            module.block[1], module.block[2] = nn.BatchNorm2d(channels), permute
        elif isinstance(module, nn.Sequential):
            for name, child in module.named_children():
                if isinstance(child, nn.LayerNorm):
                    setattr(module, name, nn.BatchNorm2d(child.normalized_shape[0]))
    return net


@register
def convnext_tiny_bnu() -> Body:
    """With batch norms instead of layer norms, as B-cos v2 trained it too."""
    return _convnext(lambda: _with_batch_norms(models.convnext_tiny()))


@register
def convnext_base_bnu() -> Body:
    """With batch norms instead of layer norms, as B-cos v2 trained it too."""
    return _convnext(lambda: _with_batch_norms(models.convnext_base()))


@register
def vgg11() -> Body:
    """With batch norms; its two hidden fully connected layers belong to the classifier."""
    # Not from the whole network: its classifier has 120 million weights that nobody would use.
    return Body(vgg.make_layers(vgg.cfgs["A"], batch_norm=True), 512)


def _timm(name: str) -> Any:
    """The package, once it is known to have that model."""
    try:
        import timm
    except ImportError:
        raise SicError(f"timm/{name} needs timm; install it with: pip install 'sic[timm]'.") from None
    if not timm.is_model(name):
        similar = timm.list_models(f"*{name.split('_')[0]}*")[:5]
        hint = f"; similar names: {', '.join(similar)}" if similar else ""
        raise SicError(f"timm has no model called {name!r}{hint}.")
    return timm


def timm_body(name: str) -> Body:
    """timm's network with its own pooling and without its classifier."""
    network = _timm(name).create_model(name, num_classes=0)
    settings = network.pretrained_cfg
    example = torch.rand(2, *settings["input_size"], generator=torch.Generator().manual_seed(0))
    features = getattr(network, "head_hidden_size", network.num_features)  # some have a hidden layer after pooling
    return Body(network, features, settings["mean"], settings["std"], example)


@contextmanager
def _quiet_download() -> Iterator[str | None]:
    """Without the messages about every attempt; yields the host that cannot be reached, and then attempts nothing."""
    from huggingface_hub import constants

    loggers = [logging.getLogger(name) for name in ("timm", "huggingface_hub", "httpx", "urllib3")]
    levels, offline = [logger.level for logger in loggers], constants.HF_HUB_OFFLINE
    host = urlparse(constants.ENDPOINT).hostname or ""
    missing = None if getproxies() or _known(host) else host  # a proxy knows more hosts than this machine
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        constants.HF_HUB_OFFLINE = offline or missing is not None
        yield missing
    finally:
        constants.HF_HUB_OFFLINE = offline
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _known(host: str) -> bool:
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True


def timm_state(name: str) -> dict[str, Tensor]:
    """The weights that timm publishes for a model, from timm's own cache or its download."""
    timm = _timm(name)
    missing = None
    try:
        with _quiet_download() as missing:
            network = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # whatever its download may raise
        reason = f"{missing} cannot be reached" if missing else str(error).strip().split("\n")[0][:120]
        raise SicError(
            f"timm could not get the weights of {name} ({reason}); download them elsewhere and give the file "
            "with --weights FILE."
        ) from None
    return dict(network.state_dict())
