from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stagecut.cli import main
from stagecut.cli.example import Example, example_of
from stagecut.cli.models import load_model
from stagecut.ir.errors import ArgumentError
from tests.cli.support import Shell

EXAMPLE = Example(rows=2, length=8)
SOURCE = """
import torch
from torch import nn

def alone(): return nn.Linear(3, 4)
def with_args(): return nn.Linear(3, 4), (torch.zeros(2, 3),)
def with_kwargs(): return nn.Linear(3, 4), (), {"input": torch.zeros(2, 3)}
def wrong(): return nn.Linear(3, 4), torch.zeros(2, 3)
def number(): return 5
value = 5
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cli_models_under_test.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def load(function: str):  # type: ignore[no-untyped-def]
    return load_model(f"cli_models_under_test:{function}", EXAMPLE, weights=True)


def test_a_function_may_return_a_model_alone_or_with_an_example(here: Path) -> None:
    assert isinstance(load("alone").model, torch.nn.Linear)
    assert load("with_args").args[0].shape == (2, 3)
    assert set(load("with_kwargs").kwargs) == {"input"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("gpt2", "module:function"),
        (":x", "module:function"),
        ("x:", "module:function"),
        ("models/big.py", "It is Python code, for stagecut plan models.big:FUNCTION -n 2"),
        ("models/big.py:build", "for stagecut plan models.big:FUNCTION -n 2"),
        ("here.toml", "It is a cluster, for stagecut plan MODEL -n 2 --cluster here.toml"),
        ("no_such_module_here:f", "there is no module 'no_such_module_here'"),
        ("cli_models_under_test:missing", "it has alone, number, with_args"),
        ("cli_models_under_test:value", "has no function 'value'"),
        ("cli_models_under_test:wrong", "returned (Linear, Tensor)"),
        ("cli_models_under_test:number", "returned (int)"),
    ],
)
def test_what_cannot_be_loaded_is_explained(here: Path, spec: str, words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        load_model(spec, EXAMPLE, weights=True)
    assert words in str(caught.value)


BROKEN = {
    "import": ("import package_that_is_not_there\n", "ModuleNotFoundError", 1),
    "syntax": ("x = 1\ndef f(:\n", "SyntaxError", 2),
    "top": ("import json\n\njson.loads('[')\n", "JSONDecodeError", 3),
    "exits": ("import argparse\nimport sys\nsys.exit('usage: train')\n", "SystemExit: usage", 3),
    "build": ("def f():\n    return g()\ndef g():\n    return {}['size']\n", "KeyError: 'size'", 4),
    "torch": ("import torch\ndef f():\n    return torch.nn.Linear(2, 'a')\n", "TypeError", 3),
    "silent": ("def f():\n    raise ValueError\n", "ValueError: no message", 2),
    "long": ("def f():\n    raise ValueError('x\\n' * 99)\n", "ValueError: x", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_the_users_code_raises_is_told_with_its_line(here: Path, name: str) -> None:
    text, words, line = BROKEN[name]
    module = f"cli_broken_{name}"
    (here / f"{module}.py").write_text(text)
    with pytest.raises(ArgumentError, match=f"{module}.* raised .*{words}") as caught:
        load_model(f"{module}:f", EXAMPLE, weights=True)
    told = str(caught.value)
    assert f"at {module}.py:{line}" in told and len(told.splitlines()) < 6
    assert caught.value.__cause__ is not None


def test_the_whole_traceback_is_there_on_request(
    here: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "cli_broken_on_request.py").write_text("def f():\n    raise OSError('no disk')\n")
    command = ("plan", "cli_broken_on_request:f", "-n", "2")
    assert "STAGECUT_TRACEBACK=1" in shell.refused(*command)
    monkeypatch.setenv("STAGECUT_TRACEBACK", "1")
    with pytest.raises(ArgumentError) as caught:
        main(command)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ArgumentError, match=r"hf:.* raised \w+: "):
        load_model(f"hf:{tmp_path}", EXAMPLE, weights=True)


def test_named_models_stay_on_the_meta_device_without_weights() -> None:
    loaded = load_model("hf:gpt2-xl", EXAMPLE, weights=False)
    assert {p.device.type for p in loaded.model.parameters()} == {"meta"}
    assert sum(p.numel() for p in loaded.model.parameters()) == 1_557_611_200
    assert loaded.kwargs is not None
    assert loaded.kwargs["input_ids"].shape == (2, 8)


@pytest.mark.parametrize(
    ("name", "kind", "key"),
    [
        ("gpt2", "GPT2LMHeadModel", "input_ids"),
        ("bert-base", "BertForMaskedLM", "input_ids"),
        ("vit-base", "ViTForImageClassification", "pixel_values"),
        ("resnet-50", "ResNetForImageClassification", "pixel_values"),
        ("llama-2-7b", "LlamaForCausalLM", "input_ids"),
        ("mistral", "MistralForCausalLM", "input_ids"),
    ],
)
def test_a_name_gets_the_class_with_a_head(name: str, kind: str, key: str) -> None:
    loaded = load_model(f"hf:{name}", EXAMPLE, weights=False)
    assert type(loaded.model).__name__ == kind
    assert loaded.kwargs is not None
    assert key in loaded.kwargs


def test_an_unknown_name_lists_those_that_are_known() -> None:
    with pytest.raises(ArgumentError, match=r"gpt2-xl.*Nothing is downloaded"):
        load_model("hf:gpt5-ultra", EXAMPLE, weights=False)


def test_a_row_longer_than_the_model_takes_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at most 1024 tokens"):
        load_model("hf:gpt2", Example(2, 2000), weights=False)


def test_a_local_folder_keeps_its_weights(tmp_path: Path) -> None:
    import transformers

    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=50)
    saved = transformers.GPT2LMHeadModel(config)
    saved.save_pretrained(tmp_path)
    loaded = load_model(f"hf:{tmp_path}", EXAMPLE, weights=True)
    for name, weight in saved.state_dict().items():
        assert torch.equal(weight, loaded.model.state_dict()[name])


def test_an_example_has_the_usual_sizes_unless_others_are_asked_for() -> None:
    assert example_of(None, None, training=True) == Example(4, None)
    assert example_of(None, None, training=True, usual=(2, 64)) == Example(2, 64)
    asked = example_of(3, None, training=False, usual=(2, 64))
    assert asked == Example(3, 64, False, ("--rows",))
