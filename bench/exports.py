"""Models that people export, made with seeds, and their ONNX files by both exporters of PyTorch.

Every parameter is perturbed before the export, because exporters merge tensors that are equal. Needs torch,
torchvision, transformers and onnxscript.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, final

from bench.vision import name_missing_ops

Exporter = Literal["dynamo", "torchscript"]
Form = Literal["training", "folded", "eval"]


@final
@dataclass(frozen=True)
class Family:
    """One model, small or with published sizes, and what it reads.

    Args:
        make: the module; True for published sizes.
        inputs: example inputs by name, at a batch; True for published sizes.
        named: inputs are passed by name, as transformers wants them.
        held_out: the rule for weights was not refined on this family.
    """

    make: Callable[[bool], Any]
    inputs: Callable[[int, bool], dict[str, Any]]
    named: bool = False
    held_out: bool = False


def _vision_models() -> Any:
    name_missing_ops()
    from torchvision import models

    return models


def _language_models() -> Any:
    name_missing_ops()  # transformers imports torchvision
    import transformers

    return transformers


def _images(small: int, large: int) -> Callable[[int, bool], dict[str, Any]]:
    def made(batch: int, published: bool) -> dict[str, Any]:
        import torch

        size = large if published else small
        return {"x": torch.randn(batch, 3, size, size)}

    return made


def _features(time: int, width: int) -> Callable[[int, bool], dict[str, Any]]:
    def made(batch: int, published: bool) -> dict[str, Any]:
        import torch

        scale = 8 if published else 1
        return {"x": torch.randn(batch, time * scale, width * scale)}

    return made


def _tokens(small: int, large: int, *names: str) -> Callable[[int, bool], dict[str, Any]]:
    def made(batch: int, published: bool) -> dict[str, Any]:
        import torch

        ids = torch.arange(batch * (large if published else small)).reshape(batch, -1) % 90
        return {name: torch.ones_like(ids) if "mask" in name else ids for name in names}

    return made


def _resnet18(published: bool) -> Any:
    models = _vision_models()
    if published:
        return models.resnet18()
    return models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=10)


def _mobilenet(published: bool) -> Any:
    models = _vision_models()
    if published:
        return models.mobilenet_v3_small()
    from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3

    rows = ((16, 3, 16, 16, True, "RE", 2, 1), (16, 3, 72, 24, False, "RE", 2, 1), (24, 5, 96, 40, True, "HS", 1, 1))
    return MobileNetV3([InvertedResidualConfig(*row, 1.0) for row in rows], last_channel=64, num_classes=10)


def _efficientnet(published: bool) -> Any:
    models = _vision_models()
    if published:
        return models.efficientnet_b0()
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    blocks = [MBConvConfig(1, 3, 1, 16, 16, 1), MBConvConfig(6, 3, 2, 16, 24, 2), MBConvConfig(6, 5, 2, 24, 40, 1)]
    return EfficientNet(blocks, dropout=0.2)


def _vit(published: bool) -> Any:
    models = _vision_models()
    if published:
        return models.vit_b_16()
    return models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=10, dropout=0.1
    )


def _encoder(published: bool) -> Any:
    from torch import nn

    scale = 8 if published else 1
    layer = nn.TransformerEncoderLayer(32 * scale, 4, 64 * scale, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 6 if published else 2, enable_nested_tensor=False)


def _recurrent(both_ways: bool) -> Callable[[bool], Any]:
    def made(published: bool) -> Any:
        from torch import nn

        class Recurrent(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                scale = 8 if published else 1
                self.rnn = nn.LSTM(12 * scale, 16 * scale, 2, bidirectional=both_ways)
                self.head = nn.Linear(16 * scale * (2 if both_ways else 1), 5)

            def forward(self, x: Any) -> Any:
                # Once, as in a file: PyTorch's cells would copy what is not contiguous for each direction.
                by_time = x.transpose(0, 1).contiguous()
                return self.head(self.rnn(by_time)[0].transpose(0, 1))

        return Recurrent()

    return made


def _unet(published: bool) -> Any:
    import torch
    from torch import nn

    def block(before: int, after: int) -> Any:
        conv = nn.Conv2d(before, after, 3, padding=1)
        return nn.Sequential(conv, nn.GroupNorm(4, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1), nn.ReLU())

    class Net(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.enter, self.deep = block(3, width), block(width, 2 * width)
            self.down, self.up = nn.MaxPool2d(2), nn.ConvTranspose2d(2 * width, width, 2, stride=2)
            self.leave, self.head = block(2 * width, width), nn.Conv2d(width, 2, 1)

        def forward(self, x: Any) -> Any:
            high = self.enter(x)
            return self.head(self.leave(torch.cat([high, self.up(self.deep(self.down(high)))], 1)))

    return Net(64 if published else 8)


def _logits(model: Any, names: tuple[str, ...], **options: Any) -> Any:
    """A model of transformers that returns one tensor."""
    from torch import nn

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any = None) -> Any:
            given = {"input_ids": input_ids, "attention_mask": attention_mask, "decoder_input_ids": decoder_input_ids}
            return self.model(**{name: given[name] for name in names}, **options).logits

    return Logits()


_EAGER: Final = {"attn_implementation": "eager"}
_TEXT: Final = ("input_ids", "attention_mask")
_PAIR: Final = (*_TEXT, "decoder_input_ids")


def _bert(published: bool) -> Any:
    models = _language_models()
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
        "vocab_size": 99, "max_position_embeddings": 24}  # fmt: skip
    return _logits(models.BertForMaskedLM(models.BertConfig(**({} if published else small), **_EAGER)), _TEXT)


def _gpt2(published: bool) -> Any:
    models = _language_models()
    small = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 99, "n_positions": 24}
    model = models.GPT2LMHeadModel(models.GPT2Config(**({} if published else small), **_EAGER))
    return _logits(model, _TEXT, use_cache=False)


def _llama(published: bool) -> Any:
    models = _language_models()
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": 99, "max_position_embeddings": 24}  # fmt: skip
    # The layers of Llama 3.2 1B, a quarter of them, and a smaller vocabulary: a file stays below 2 GiB.
    large = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 32000}  # fmt: skip
    model = models.LlamaForCausalLM(models.LlamaConfig(**(large if published else small), **_EAGER))
    return _logits(model, _TEXT, use_cache=False)


def _t5(published: bool) -> Any:
    models = _language_models()
    small = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 99}
    return _logits(
        models.T5ForConditionalGeneration(models.T5Config(**({} if published else small))), _PAIR, use_cache=False
    )


FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "vit": Family(_vit, _images(32, 224)),
        "resnet18": Family(_resnet18, _images(64, 224)),
        "mobilenet_v3": Family(_mobilenet, _images(64, 224)),
        "encoder": Family(_encoder, _features(10, 32)),
        "lstm": Family(_recurrent(False), _features(9, 12)),
        "bilstm": Family(_recurrent(True), _features(9, 12)),
        "unet": Family(_unet, _images(16, 128)),
        "bert": Family(_bert, _tokens(9, 128, *_TEXT), named=True),
        "gpt2": Family(_gpt2, _tokens(9, 128, *_TEXT), named=True),
        "llama": Family(_llama, _tokens(9, 128, *_TEXT), named=True),
        "efficientnet": Family(_efficientnet, _images(64, 224), held_out=True),
        "t5": Family(_t5, _tokens(9, 128, *_PAIR), named=True, held_out=True),
    }
)


def seeded(family: Family, *, published: bool = False) -> Any:
    """The module of a family, its parameters drawn from a fixed seed and all different."""
    import torch

    torch.manual_seed(7)
    module = family.make(published)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return module


def write(family: Family, path: Path, *, exporter: Exporter, form: Form, opset: int, published: bool = False) -> Any:
    """Write the ONNX file of a family with a free batch; returns the module.

    "training" is the step as it is trained: without optimization by dynamo, which folds batch normalization even in
    `train()`. "folded", by dynamo alone, folds its constants afterwards: dropouts inside attention go, and parameters
    that meet nothing but constants are stored as what they make.
    """
    import torch

    module = seeded(family, published=published)
    module.train(form != "eval")
    given = family.inputs(2, published)
    keywords = given if family.named else {}
    arguments = () if family.named else tuple(given.values())
    names = list(given)
    with warnings.catch_warnings(), _silent():
        warnings.simplefilter("ignore")
        if exporter == "torchscript":
            torch.onnx.export(
                module, (*arguments, keywords) if keywords else arguments, str(path), dynamo=False, opset_version=opset,
                input_names=names, dynamic_axes={name: {0: "N"} for name in names},
                training=getattr(torch.onnx.TrainingMode, form.upper()), do_constant_folding=form == "eval",
            )  # fmt: skip
            return module
        free = torch.export.Dim("N", min=1, max=4096)
        axes = {name: {0: free} for name in names}
        program = torch.onnx.export(
            module, arguments, kwargs=keywords or None, dynamo=True, opset_version=opset, input_names=names,
            dynamic_shapes=axes if keywords else tuple(axes.values()), optimize=form == "eval", verbose=False,
        )  # fmt: skip
        if form == "folded":
            from onnxscript import optimizer

            optimizer.fold_constants(program.model, onnx_shape_inference=True)
            optimizer.remove_unused_nodes(program.model)
        program.save(str(path))
    return module


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Exporters print and log a page each."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
