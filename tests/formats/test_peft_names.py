"""What the names of adapters' tensors say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from warmshelfd.formats.peft_names import Parsed, Part, parse_name


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("a.q.lora_A.weight", Parsed(Part.LORA_A, "a.q", "a.q", "weight")),
        ("a.q.lora_B.weight", Parsed(Part.LORA_B, "a.q", "a.q", "weight")),
        ("q.lora_A.default.weight", Parsed(Part.LORA_A, "q", "q", "weight", "default")),
        ("q.lora_B.weight.weight", Parsed(Part.LORA_B, "q", "q", "weight", "weight")),
        ("q.lora_B.bias", Parsed(Part.LORA_BIAS, "q", "q", "bias")),
        ("q.lora_B.mine.bias", Parsed(Part.LORA_BIAS, "q", "q", "bias", "mine")),
        ("q.lora_A.a.b.weight", Parsed(Part.OTHER, "q", "q", "lora_A")),
        ("q.lora_A", Parsed(Part.OTHER, "q", "q", "lora_A")),
        ("q.lora_A.bias", Parsed(Part.OTHER, "q", "q", "lora_A")),
        ("e.lora_embedding_A", Parsed(Part.EMBEDDING_A, "e", "e")),
        ("e.lora_embedding_B.mine", Parsed(Part.EMBEDDING_B, "e", "e", "", "mine")),
        ("q.lora_magnitude_vector", Parsed(Part.MAGNITUDE, "q", "q")),
        ("q.lora_magnitude_vector.mine.weight", Parsed(Part.MAGNITUDE, "q", "q", "weight", "mine")),
        ("e.token_adapter.trainable_tokens_delta", Parsed(Part.TOKEN_ROWS, "e.token_adapter", "e")),
        ("x.experts.base_layer.lora_A.weight", Parsed(Part.LORA_A, "x.experts.base_layer", "x.experts", "weight")),
        ("at.base_layer.out.lora_A.weight", Parsed(Part.LORA_A, "at.base_layer.out", "at.out", "weight")),
        ("lm_head.weight", Parsed(Part.WHOLE, "lm_head", "lm_head", "weight")),
        ("q.base_layer.bias", Parsed(Part.WHOLE, "q.base_layer", "q", "bias")),
        ("score.modules_to_save.mine.weight", Parsed(Part.WHOLE, "score", "score", "weight", "mine")),
        ("score.modules_to_save.weight", Parsed(Part.WHOLE, "score", "score", "weight")),
        ("h.modules_to_save.mine.dense.bias", Parsed(Part.WHOLE, "h", "h.dense", "bias", "mine")),
        ("score.original_module.weight", Parsed(Part.OTHER, "score", "score", "original_module")),
        ("q.lora_sampler.std", Parsed(Part.OTHER, "q", "q", "lora_sampler")),
        ("w", Parsed(Part.WHOLE, "", "", "w")),
        ("", Parsed(Part.WHOLE, "", "", "")),
        ("lora_A.weight", Parsed(Part.LORA_A, "", "", "weight")),
        ("modules_to_save", Parsed(Part.OTHER, "", "", "modules_to_save")),
        ("..", Parsed(Part.WHOLE, ".", ".", "")),
    ],
)
def test_a_name_says_module_and_part(name: str, parsed: Parsed) -> None:
    assert parse_name(f"base_model.model.{name}") == parsed
    assert parse_name(name) == replace(parsed, spelling=("key_prefix:none",))


@pytest.mark.parametrize(
    ("name", "module", "spelling"),
    [
        ("base_model.model.module.q.lora_A.weight", "module.q", ()),
        ("module.base_model.model.q.lora_A.weight", "q", ("key_wrapper:module",)),
        ("_orig_mod.module.base_model.model.q.lora_A.weight", "q", ("key_wrapper:_orig_mod", "key_wrapper:module")),
        ("base_model.model._orig_mod.q.lora_A.weight", "q", ("key_wrapper:_orig_mod",)),
        ("base_model.model.a._fsdp_wrapped_module.q.lora_A.weight", "a.q", ("key_wrapper:_fsdp_wrapped_module",)),
        ("_orig_mod.q.lora_A.weight", "q", ("key_wrapper:_orig_mod", "key_prefix:none")),
        ("module.q.lora_A.weight", "module.q", ("key_prefix:none",)),
        ("my_base_model.model.q.lora_A.weight", "my_base_model.model.q", ("key_prefix:none",)),
        ("base_model.q.lora_A.weight", "base_model.q", ("key_prefix:none",)),
    ],
)
def test_what_training_puts_around_modules_is_named_and_no_part_of_the_module(
    name: str, module: str, spelling: tuple[str, ...]
) -> None:
    """B15: PEFT finds none of these but the first."""
    parsed = parse_name(name)
    assert (parsed.part, parsed.module, parsed.spelling) == (Part.LORA_A, module, spelling)
