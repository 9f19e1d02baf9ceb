#!/usr/bin/env python3
"""Writes FOLDER/bf16.json: how far transformers in bf16 is from the case (pip install torch transformers safetensors).

usage: measure_bf16.py FOLDER...

Two runs of each model case: f32 weights under autocast, and everything in bf16. Of each figure the larger counts, as
`ananke parity` measures it: logits and loss absolute, gradients of their tensor's largest element, where a difference
below bf16's rounding of the case's largest gradient is none.
"""
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file

ROUNDING = 2.0**-7


def run(folder, case, autocast):
    config = transformers.AutoConfig.from_pretrained(folder)
    config._experts_implementation = "eager"  # the grouped one wants sizes that are multiples of 8
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32 if autocast else torch.bfloat16, attn_implementation="eager")
    ids = case["input_ids"].long()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    wanted = {name: g for name, g in case.items() if name.startswith("grad.")}
    rounding = max(g.abs().max().item() for g in wanted.values()) * ROUNDING
    worst = 0.0
    for name, parameter in model.named_parameters():
        if "grad." + name not in wanted:
            continue  # an expert that all tokens share, of width 0
        g = wanted["grad." + name]
        ours = torch.zeros_like(g) if parameter.grad is None else parameter.grad.float()
        difference = (ours - g).abs().max().item()
        if difference > rounding:
            worst = max(worst, difference / g.abs().max().item())
    return {"logits": (out.logits.float() - case["logits"]).abs().max().item(),
            "loss": abs(out.loss.item() - case["loss"].item()), "gradients": worst}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for folder in map(pathlib.Path, sys.argv[1:]):
        case = load_file(folder / "case.safetensors")
        runs = [run(folder, case, autocast) for autocast in (True, False)]
        errors = {name: float(f"{max(one[name] for one in runs):.4g}") for name in runs[0]}
        (folder / "bf16.json").write_text(json.dumps(errors) + "\n")
        print(f"{folder}: {errors}")


if __name__ == "__main__":
    main()
