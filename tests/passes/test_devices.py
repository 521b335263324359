from __future__ import annotations

import pytest

from stagecut.ir.device import EVERY_CLASS
from stagecut.ir.devices import CLUSTERS, DEVICES, cluster, device
from stagecut.ir.errors import ArgumentError


def test_every_device_cites_its_source_and_reaches_less_than_its_peak() -> None:
    for card in DEVICES.values():
        words = ("datasheet", "data sheet", "Technical Brief", "benchmarks/costs")
        assert any(word in card.source for word in words)
        rates = dict(card.flops_per_second)
        for dtype, rate in rates.items():
            assert 0.3 * rate < card.attainable_flops_per_second(dtype) < rate
        assert rates.get("tf32", rates["float32"]) >= rates["float32"]
        assert 0 < card.attainable_bytes_per_second < card.bytes_per_second


def test_names_in_any_case() -> None:
    assert device("a100").name == device("A100-80gb").name == "A100-80GB"
    assert device("cpu").kind == "cpu"


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(ArgumentError, match=r"'H900'.*V100, T4"):
        device("H900")
    with pytest.raises(ArgumentError, match=r"'dgx-9'.*dgx-a100"):
        cluster("dgx-9", 4)
    with pytest.raises(ArgumentError, match="ask for 1 or more"):
        cluster(None, 0)


def test_without_a_name_a_cluster_is_assumed() -> None:
    assumed = cluster(None, 12)
    assert assumed.assumed and not cluster("dgx-a100", 12).assumed
    assert [d.name for d in assumed.devices] == ["A100-80GB"] * 12
    assert assumed.devices_per_node == 8
    assert assumed.link(0, 7) is assumed.inside and assumed.link(0, 8) is assumed.between


@pytest.mark.parametrize("name", [*CLUSTERS, *DEVICES])
def test_every_preset_and_device_makes_a_cluster(name: str) -> None:
    group = cluster(name, 4)
    assert len(group.devices) == 4
    assert group.inside.bytes_per_second > group.between.bytes_per_second
    if name in DEVICES:
        assert group.devices[0].name == name


def test_tf32_is_used_where_torch_uses_it() -> None:
    group = cluster("dgx-a100", 2)
    default, strict, loose = (group.running(d).devices[0] for d in (None, "float32", "tf32"))
    for op_class in EVERY_CLASS:
        slow = strict.attainable_flops_per_second("float32", op_class)
        fast = loose.attainable_flops_per_second("float32", op_class)
        assert fast == pytest.approx(8 * slow)  # 156 and 19.5 TFLOP/s
        cudnn = op_class in ("convolution", "recurrent")
        assert default.attainable_flops_per_second("float32", op_class) == (fast if cudnn else slow)
        for card in (default, strict, loose):
            assert card.attainable_flops_per_second("bfloat16", op_class) == pytest.approx(2 * fast)
    volta = cluster("V100", 1)  # has none
    assert volta.running("tf32").devices[0].attainable_flops_per_second("float32") == pytest.approx(
        volta.devices[0].attainable_flops_per_second("float32")
    )


def test_another_dtype_is_the_model_s_own() -> None:
    with pytest.raises(ArgumentError, match=r"float32 or tf32.*model.bfloat16\(\)"):
        cluster("A100", 1).running("bfloat16")


def test_tensors_have_what_the_margin_leaves() -> None:
    card, cpu = device("A100"), device("CPU")
    assert (card.margin_bytes, card.usable_bytes) == (8e9, 72e9)
    assert (cpu.margin_bytes, cpu.usable_bytes) == (0.0, cpu.memory_bytes)


def test_attention_reaches_less_than_a_product() -> None:
    card = device("A100")
    product = card.attainable_flops_per_second("bfloat16")
    assert 0.6 * product < card.attainable_flops_per_second("bfloat16", "attention") < product
