"""torchvision's architectures without their classifiers."""

from collections import OrderedDict
from collections.abc import Callable

from torch import nn
from torchvision import models
from torchvision.models import vgg
from torchvision.models.convnext import CNBlock

from sic.backbones.registry import Body, register


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
