"""Which adapters and bases belong together."""

from __future__ import annotations

import pytest

from warmshelf.errors import BaseMismatch
from warmshelf.types import BaseCheck
from warmshelfd.domain.adapter_shapes import AdapterShapes, Need, adapter_shapes
from warmshelfd.domain.base_check import BaseResult, check_against_base

Q, V = "model.layers.0.q_proj", "model.layers.0.v_proj"
EMB, HEAD = "model.embed_tokens", "lm_head"
BASE = {
    f"{EMB}.weight": (10, 8),
    f"{Q}.weight": (8, 8),
    f"{Q}.bias": (8,),
    f"{V}.weight": (2, 8),
    f"{HEAD}.weight": (10, 8),
}


def pair(module: str, *shape: int) -> Need:
    return Need(module, "weight", shape, paired=True)


def whole(module: str, *shape: int, leaf: str = "weight") -> Need:
    return Need(module, leaf, shape, paired=False)


def adapter(*needs: Need, fan_in_fan_out: bool = False) -> AdapterShapes:
    return adapter_shapes(needs, fan_in_fan_out=fan_in_fan_out)


def check(*needs: Need, base: dict[str, tuple[int, ...]] | None = None) -> BaseResult:
    return check_against_base(adapter(*needs), BASE if base is None else base)


def test_an_adapter_whose_modules_the_base_has_is_matched() -> None:
    assert check(pair(Q, 8, 8), pair(V, 2, 8), whole(Q, 8, leaf="bias"), whole(HEAD, 10, 8)) == BaseResult(
        BaseCheck.MATCHED, (HEAD, Q, V), ()
    )


def test_modules_that_the_base_lacks_are_listed() -> None:
    """B15: half and half, and one layer too many."""
    above = "model.layers.1.q_proj"
    assert check(pair(Q, 8, 8), pair(above, 8, 8)) == BaseResult(BaseCheck.PARTIAL, (Q,), (above,))
    assert check(pair(Q, 8, 8), whole("score", 2, 8)) == BaseResult(BaseCheck.PARTIAL, (Q,), ("score",))
    assert check(pair(V, 2, 8), whole(V, 2, leaf="bias"), pair(Q, 8, 8)).unmatched == (V,)


@pytest.mark.parametrize("prefix", ["language_model.", "base_model.model.", "model."])
def test_another_prefix_is_another_module(prefix: str) -> None:
    """B15: and the error shows what the base has instead."""
    base = {prefix + name: shape for name, shape in BASE.items()}
    with pytest.raises(BaseMismatch, match=f"none of the adapter's 2 modules.*{Q}.*{prefix}{Q}") as caught:
        check(pair(Q, 8, 8), pair(V, 2, 8), base=base)
    assert caught.value.details == {"module": Q, "tensor": f"{Q}.weight", "unmatched_count": 2}


def test_a_tensor_that_alone_is_missing_is_named() -> None:
    """B12: such as the bias of ``bias="all"`` at a base that has none."""
    base = {f"{Q}.weight": (8, 8)}
    with pytest.raises(BaseMismatch, match=rf"no tensor '{Q}\.bias'") as caught:
        check(pair(Q, 8, 8), whole(Q, 8, leaf="bias"), base=base)
    assert caught.value.details["tensor"] == f"{Q}.bias"


def test_no_output_layer_is_found_under_another_prefix() -> None:
    """B15: tied or not, the base's is not the adapter's."""
    base = {f"language_model.{name}": shape for name, shape in BASE.items()}
    with pytest.raises(BaseMismatch, match="none of the adapter's 1 modules"):
        check(whole(HEAD, 10, 8), base=base)


@pytest.mark.parametrize(
    "need", [pair(Q, 16, 16), pair(V, 8, 8), pair(V, 8, 2), whole(Q, 9, leaf="bias"), whole(Q, 8, 8, 1), pair(Q, 8)]
)
def test_a_shape_that_differs_is_refused_with_module_and_both_shapes(need: Need) -> None:
    """B17."""
    with pytest.raises(BaseMismatch) as caught:
        check(pair(Q, 8, 8), need)
    held = str(list(BASE[need.tensor_name]))
    assert caught.value.details == {
        "module": need.module,
        "expected_shape": held,
        "got_shape": str(list(need.shape or ())),
    }
    assert all(text in caught.value.message for text in (need.module, held, str(list(need.shape or ()))))


def test_a_grown_vocabulary_is_reported_and_no_mismatch() -> None:
    """B10."""
    result = check(whole(EMB, 12, 8), whole(HEAD, 12, 8), pair(Q, 8, 8))
    assert (result.check, result.vocabulary) == (BaseCheck.MATCHED, (10, 12))
    assert result.features == ("vocabulary:10->12",)
    assert check(pair(EMB, 12, 8)).vocabulary == (10, 12)
    assert check(whole("emb", 12, 8), base={"emb.weight": (10, 8)}).vocabulary == (10, 12)
    assert check(whole(EMB, 10, 8)).features == ()


@pytest.mark.parametrize("need", [whole(EMB, 9, 8), whole(EMB, 12, 9), whole(EMB, 12), pair(V, 3, 8), whole(V, 3, 8)])
def test_nothing_else_may_differ_with_the_vocabulary(need: Need) -> None:
    """A smaller one, other columns, more rows of something that has no row per token."""
    with pytest.raises(BaseMismatch, match=need.module):
        check(need)


def test_more_positions_are_no_vocabulary() -> None:
    with pytest.raises(BaseMismatch, match="embed_positions"):
        check(whole("embed_positions", 64, 8), base={"embed_positions.weight": (32, 8)})


def test_trained_token_rows_need_the_columns_only() -> None:
    """B10."""
    assert check(whole(EMB, 0, 8)).check is BaseCheck.MATCHED
    with pytest.raises(BaseMismatch, match=EMB):
        check(whole(EMB, 0, 16))


def test_an_output_layer_tied_to_the_embedding_is_not_missing() -> None:
    """B12."""
    base = {name: shape for name, shape in BASE.items() if name != f"{HEAD}.weight"}
    assert check(whole(HEAD, 10, 8), base=base) == BaseResult(BaseCheck.MATCHED, (HEAD,), ())
    assert check(pair(HEAD, 10, 8), base=base).check is BaseCheck.MATCHED
    assert check(whole(HEAD, 12, 8), base=base).vocabulary == (10, 12)
    assert check(whole(HEAD, 10, 16), pair(Q, 8, 8), base=base).unmatched == (HEAD,)
    two = base | {"encoder.embed_tokens.weight": (10, 8)}
    assert check(whole(HEAD, 10, 8), pair(Q, 8, 8), base=two).unmatched == (HEAD,)


def test_a_weight_stored_transposed_fits_where_config_or_bias_say_so() -> None:
    """As GPT-2 stores its projections."""
    base = {"h.0.c_attn.weight": (8, 24)}
    need = pair("h.0.c_attn", 24, 8)
    assert check_against_base(adapter(need, fan_in_fan_out=True), base).check is BaseCheck.MATCHED
    assert check(need, base=base | {"h.0.c_attn.bias": (24,)}).check is BaseCheck.MATCHED
    with pytest.raises(BaseMismatch):
        check(need, base=base)
    with pytest.raises(BaseMismatch):
        check(need, base=base | {"h.0.c_attn.bias": (8,)})
    with pytest.raises(BaseMismatch):
        check_against_base(adapter(whole("h.0.c_attn", 24, 8), fan_in_fan_out=True), base)


@pytest.mark.parametrize(
    "base",
    [
        {f"{Q}.qweight": (1, 64), f"{Q}.scales": (1, 8)},
        {f"{Q}.weight_packed": (8, 1)},
        {f"{Q}.weight": (32, 1), f"{Q}.weight.absmax": (1,)},
        {f"{Q}.weight": (8, 4), f"{Q}.weight_scale": (8, 1), f"{Q}.weight_scale_2": ()},
        {f"{Q}.in_proj_weight": (24, 8)},
        {f"{Q}.0.weight": (8, 8), f"{Q}.1.weight": (8, 8)},
    ],
)
def test_a_module_whose_weight_is_kept_otherwise_is_matched_by_its_name(base: dict[str, tuple[int, ...]]) -> None:
    """Quantised, several projections in one tensor, several experts."""
    assert check(pair(Q, 8, 8), base=base).matched == (Q,)
    with pytest.raises(BaseMismatch):
        check(whole(Q, 8, 8), base=base)


def test_a_need_without_a_shape_is_for_the_module_alone() -> None:
    assert check(Need(Q, "weight", None, paired=True)).check is BaseCheck.MATCHED
    with pytest.raises(BaseMismatch):
        check(Need("elsewhere", "weight", None, paired=True))


def test_layers_used_twice_are_looked_for_where_they_come_from() -> None:
    """B15: three layers made into four; a fifth is nowhere."""
    base = {f"model.layers.{i}.q.weight": (8, 8 + i) for i in range(3)} | {"h.head.weight": (8, 8)}
    needs = [pair(f"model.layers.{i}.q", 8, 8 + layer) for i, layer in enumerate((0, 1, 1, 2))]
    shapes = adapter_shapes([*needs, pair("h.head", 8, 8)], fan_in_fan_out=False, layers=(0, 1, 1, 2))
    assert check_against_base(shapes, base) == BaseResult(BaseCheck.MATCHED, shapes.module_names, ())
    above = adapter_shapes([*needs, pair("model.layers.4.q", 8, 8)], fan_in_fan_out=False, layers=(0, 1, 1, 2))
    assert check_against_base(above, base).unmatched == ("model.layers.4.q",)
    with pytest.raises(BaseMismatch, match=r"model.layers.2.q"):
        check_against_base(
            adapter_shapes([pair("model.layers.3.q", 8, 8)], fan_in_fan_out=False, layers=(0, 1, 1, 2)), base
        )


def test_an_adapter_that_needs_nothing_is_unchecked() -> None:
    assert check() == BaseResult(BaseCheck.UNCHECKED, (), ())


def test_an_empty_base_has_nothing() -> None:
    with pytest.raises(BaseMismatch, match="none of the adapter's 1 modules, such as"):
        check(pair(Q, 8, 8), base={})
