"""Makes logs as the WakeKV scripts write them: the same numbers in several ways of storing.

    python3 make_log.py FOLDER plain|packed|object|wide
"""
import json
import os
import sys

import numpy as np

folder, how = sys.argv[1:]
rng = np.random.default_rng(5)
S, L, H, K, P = 21, 2, 4, 6, 40
idx = rng.integers(-1, P, (S, L, H, K)).astype("<i4")
val = rng.random((S, L, H, K)).astype("<f2")
arrays = dict(topk_idx=idx, topk_val=val, ctx_len=(P + np.arange(S)).astype("<i4"),
              gen_token_ids=rng.integers(0, 50000, S).astype("<i8"),
              needle_score=rng.random((S, L, H)).astype("<f4"), copy_paste=rng.random((S, L, H)) < 0.5)
if how == "packed":
    arrays["topk_val"] = np.asfortranarray(val)
    arrays["topk_idx"] = idx.astype(">i4")
    arrays["needle_score"] = np.asfortranarray(arrays["needle_score"].astype(">f4"))
if how == "wide":
    arrays["topk_idx"] = idx.astype("<i8")
    arrays["ctx_len"] = arrays["ctx_len"].astype("<u2")
if how == "object":
    arrays["ctx_len"] = arrays["ctx_len"].astype(object)
os.makedirs(folder, exist_ok=True)
(np.savez_compressed if how == "packed" else np.savez)(os.path.join(folder, "log.npz"), **arrays)
with open(os.path.join(folder, "meta.json"), "w") as f:
    json.dump(dict(prompt_len=P, n_layers=L, n_heads=H, n_kv_heads=2, topk=K, sink_tokens=4, local_window=32,
                   needle_token_span=[10, 16], generated_text="die Antwort: \u20ac 42", depth=0.25, attempts=3,
                   answers=["a", "b"], passed=True, model="tiny"), f)
