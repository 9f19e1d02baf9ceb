#!/usr/bin/env python3
"""Writes model cases of the Qwen3-MoE family with Hugging Face transformers (pip install torch transformers safetensors).

usage: make_cases.py FOLDER [NAME...]

Each case is FOLDER/NAME with config.json, model.safetensors (one tensor per expert) and case.safetensors (input_ids,
logits, loss and grad.* in float32, experts stacked as transformers holds them). README.md describes the files.
"""
import json
import pathlib
import re
import sys

import torch
from safetensors.torch import save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

BASE = dict(vocab_size=96, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            intermediate_size=40, moe_intermediate_size=20, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True,
            rms_norm_eps=1e-6, max_position_embeddings=128, initializer_range=0.1, attention_dropout=0.0)
# name: (changes, rows, tokens per row)
CASES = {
    "qwen3_moe_tied_mqa": (dict(tie_word_embeddings=True, num_key_value_heads=1, head_dim=16), 3, 19),
    "qwen3_moe_dense_mix": (dict(num_hidden_layers=5, decoder_sparse_step=2, mlp_only_layers=[3], num_experts=5,
                                 num_experts_per_tok=3), 2, 23),
    "qwen3_moe_unnormalised": (dict(norm_topk_prob=False, num_experts=7, num_experts_per_tok=4, rms_norm_eps=1e-5), 1, 37),
    "qwen3_moe_top1": (dict(num_experts_per_tok=1, num_experts=8, num_attention_heads=6, num_key_value_heads=3), 5, 11),
    "qwen3_moe_all_experts": (dict(num_experts_per_tok=6, vocab_size=101, hidden_size=36), 2, 2),
    "qwen3_moe_theta": (dict(rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"}, head_dim=32), 2, 101),
}


def split_experts(name, tensor):
    """transformers 5 stacks experts; files have one tensor per expert."""
    match = re.fullmatch(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)", name)
    if not match:
        yield name, tensor
        return
    for expert, matrix in enumerate(tensor):
        if match[2] == "down_proj":
            yield f"{match[1]}.{expert}.down_proj.weight", matrix
        else:
            gate, up = matrix.chunk(2, dim=0)
            yield f"{match[1]}.{expert}.gate_proj.weight", gate
            yield f"{match[1]}.{expert}.up_proj.weight", up


def write_case(folder, seed, changes, rows, length):
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(**{**BASE, **changes})
    config._attn_implementation = "eager"
    model = Qwen3MoeForCausalLM(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # norms away from 1, so that a mistake in them shows
            if "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    ids = torch.randint(0, config.vocab_size, (rows, length))
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    folder.mkdir(parents=True, exist_ok=True)
    settings = json.loads(config.to_json_string(use_diff=False))
    settings["architectures"] = ["Qwen3MoeForCausalLM"]
    (folder / "config.json").write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    weights = {}
    for name, parameter in model.named_parameters():
        weights.update((n, t.detach().clone().contiguous()) for n, t in split_experts(name, parameter))
    save_file(weights, folder / "model.safetensors")
    case = {"input_ids": ids.to(torch.int32), "logits": out.logits.detach().contiguous(), "loss": out.loss.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        case["grad." + name] = gradient.contiguous()
    save_file(case, folder / "case.safetensors")
    print(f"{folder}: loss {out.loss.item():.6f}")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    names = sys.argv[2:] or list(CASES)
    for name in names:
        if name not in CASES:
            sys.exit(f"no case '{name}'; there are {', '.join(CASES)}")
        write_case(pathlib.Path(sys.argv[1]) / name, list(CASES).index(name) + 1, *CASES[name])


if __name__ == "__main__":
    main()
