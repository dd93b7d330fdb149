"""Make a work folder from the exported pipeline, so that training goes on from it: OUT/vae.pt, OUT/init.pt (for
train_dit.py --init), OUT/tokenizer and OUT/stats.json."""
import argparse, json, os
import torch
from safetensors.torch import load_file
import dit as D, make_tokenizer

ap = argparse.ArgumentParser()
ap.add_argument("--out", default="work")
ap.add_argument("--of", default="..", help="the folder of model_index.json")
a = ap.parse_args()


def weights(name):
    return {k: v.float() for k, v in load_file(os.path.join(a.of, name)).items()}


os.makedirs(a.out, exist_ok=True)
torch.save(dict(model=weights("vae/diffusion_pytorch_model.safetensors")), os.path.join(a.out, "vae.pt"))
text = D.make_text()
missing, extra = text.load_state_dict(weights("text_encoder/model.safetensors"), strict=False)
assert not extra and all("embed_tokens" in k for k in missing), (missing, extra)  # the tied copy may be left out
torch.save(dict(model=weights("transformer/diffusion_pytorch_model.safetensors"), text=text.state_dict()),
           os.path.join(a.out, "init.pt"))
config = json.load(open(os.path.join(a.of, "vae", "config.json")))
json.dump(dict(mean=config["latents_mean"], std=config["latents_std"]), open(os.path.join(a.out, "stats.json"), "w"))
make_tokenizer.main(os.path.join(a.out, "tokenizer"))
