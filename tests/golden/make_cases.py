#!/usr/bin/env python3
"""Writes model and router cases with Hugging Face transformers (pip install torch transformers safetensors).

usage: make_cases.py FOLDER [NAME...]

Each case is FOLDER/NAME with config.json, model.safetensors (one tensor per expert) and case.safetensors (input_ids,
logits, loss and grad.* in float32, experts stacked as transformers holds them), or a router case: router.json and
case.safetensors. README.md describes the files.
"""
import json
import pathlib
import re
import sys

import torch
from safetensors.torch import save_file
from transformers import Dots1Config, Dots1ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

BASE = dict(vocab_size=96, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            intermediate_size=40, moe_intermediate_size=20, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True,
            rms_norm_eps=1e-6, max_position_embeddings=128, initializer_range=0.1, attention_dropout=0.0)
# Sigmoid routers with a bias and groups, as DeepSeek-V3 has them, on the attention of Qwen3; no shared experts.
DOTS1 = dict(vocab_size=90, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
             intermediate_size=40, moe_intermediate_size=12, n_routed_experts=12, n_shared_experts=0, num_experts_per_tok=4,
             first_k_dense_replace=1, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5,
             rms_norm_eps=1e-6, max_position_embeddings=128, initializer_range=0.1, sliding_window=None)
# name: (changes, rows, tokens per row)
CASES = {
    "qwen3_moe_tied_mqa": (dict(tie_word_embeddings=True, num_key_value_heads=1, head_dim=16), 3, 19),
    "qwen3_moe_dense_mix": (dict(num_hidden_layers=5, decoder_sparse_step=2, mlp_only_layers=[3], num_experts=5,
                                 num_experts_per_tok=3), 2, 23),
    "qwen3_moe_unnormalised": (dict(norm_topk_prob=False, num_experts=7, num_experts_per_tok=4, rms_norm_eps=1e-5), 1, 37),
    "qwen3_moe_top1": (dict(num_experts_per_tok=1, num_experts=8, num_attention_heads=6, num_key_value_heads=3), 5, 11),
    "qwen3_moe_all_experts": (dict(num_experts_per_tok=6, vocab_size=101, hidden_size=36), 2, 2),
    "qwen3_moe_theta": (dict(rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"}, head_dim=32), 2, 101),
    "qwen3_moe_auxiliary": (dict(num_hidden_layers=3, output_router_logits=True, router_aux_loss_coef=0.01, num_experts=8,
                                 num_experts_per_tok=3), 3, 21),
    "qwen3_moe_auxiliary_mix": (dict(num_hidden_layers=5, decoder_sparse_step=2, output_router_logits=True,
                                     router_aux_loss_coef=0.5, norm_topk_prob=False), 4, 13),
    "dots1": (DOTS1, 3, 17),
    "dots1_without_groups": ({**DOTS1, "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "first_k_dense_replace": 0,
                              "routed_scaling_factor": 1.0}, 2, 20),
}
# name: (changes of the configuration, tokens, bias)
ROUTERS = {
    "deepseek_v3_router": (dict(n_routed_experts=32, n_group=8, topk_group=3, num_experts_per_tok=6, norm_topk_prob=True,
                                routed_scaling_factor=2.5), 96, 0.2),
    "deepseek_v3_router_unbiased": (dict(n_routed_experts=16, n_group=2, topk_group=1, num_experts_per_tok=8,
                                         norm_topk_prob=False, routed_scaling_factor=1.0), 64, 0.0),
    "deepseek_v3_router_one_group": (dict(n_routed_experts=12, n_group=1, topk_group=1, num_experts_per_tok=3,
                                          norm_topk_prob=True, routed_scaling_factor=1.5), 64, 0.3),
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
    sigmoid = "n_routed_experts" in changes
    config = Dots1Config(**changes) if sigmoid else Qwen3MoeConfig(**{**BASE, **changes})
    config._attn_implementation = "eager"
    model = (Dots1ForCausalLM if sigmoid else Qwen3MoeForCausalLM)(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # norms away from 1, so that a mistake in them shows
            if "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if "e_score_correction_bias" in name:
                buffer.copy_(0.2 * torch.randn_like(buffer))
    ids = torch.randint(0, config.vocab_size, (rows, length))
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    folder.mkdir(parents=True, exist_ok=True)
    settings = json.loads(config.to_json_string(use_diff=False))
    settings["architectures"] = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    weights = {}
    for name, parameter in model.named_parameters():
        weights.update((n, t.detach().clone().contiguous()) for n, t in split_experts(name, parameter))
    weights.update((n, b.clone()) for n, b in model.named_buffers() if "e_score_correction_bias" in n)
    save_file(weights, folder / "model.safetensors")
    case = {"input_ids": ids.to(torch.int32), "logits": out.logits.detach().contiguous(), "loss": out.loss.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        if gradient.numel():
            case["grad." + name] = gradient.contiguous()
    save_file(case, folder / "case.safetensors")
    print(f"{folder}: loss {out.loss.item():.6f}")


def write_router_case(folder, seed, changes, tokens, deviation):
    """x, gate and bias; what the router chose, its weights, and the gradients of sum(weights * dweights)."""
    torch.manual_seed(seed)
    config = DeepseekV3Config(hidden_size=20, **changes)
    router = DeepseekV3TopkRouter(config)
    with torch.no_grad():
        router.weight.copy_(torch.randn_like(router.weight) * 0.3)
        router.e_score_correction_bias.copy_(torch.randn_like(router.e_score_correction_bias) * deviation)
    x = torch.randn(tokens, config.hidden_size, requires_grad=True)
    _, weights, indices = router(x)
    order = indices.sort(dim=-1)  # transformers leaves the order within a token open
    weights = weights.gather(1, order[1])
    dweights = torch.randn_like(weights)
    (weights * dweights).sum().backward()
    folder.mkdir(parents=True, exist_ok=True)
    names = ("n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor")
    (folder / "router.json").write_text(json.dumps({name: getattr(config, name) for name in names}, indent=1) + "\n")
    save_file({"x": x.detach(), "gate": router.weight.detach(), "bias": router.e_score_correction_bias.clone(),
               "indices": order[0].to(torch.int32), "weights": weights.detach(), "dweights": dweights,
               "grad.x": x.grad, "grad.gate": router.weight.grad}, folder / "case.safetensors")
    print(f"{folder}: {tokens} tokens")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    everything = list(CASES) + list(ROUTERS)
    for name in sys.argv[2:] or everything:
        if name not in everything:
            sys.exit(f"no case '{name}'; there are {', '.join(everything)}")
        write, case = (write_case, CASES[name]) if name in CASES else (write_router_case, ROUTERS[name])
        write(pathlib.Path(sys.argv[1]) / name, everything.index(name) + 1, *case)


if __name__ == "__main__":
    main()
