"""Write the whole pipeline, in bfloat16, as a diffusers folder."""
import argparse, json, os, shutil
import torch
from diffusers import UniPCMultistepScheduler
from safetensors.torch import save_file
import dit as D, vae as V, make_tokenizer

ap = argparse.ArgumentParser()
ap.add_argument("--out", default="work")
ap.add_argument("--to", default="..", help="the folder of model_index.json")
ap.add_argument("--dtype", default="bfloat16")
ap.add_argument("--random", action="store_true", help="untrained weights where a checkpoint is missing")
a = ap.parse_args()
dtype = getattr(torch, a.dtype)
torch.manual_seed(0)
model, text, vae = D.make_dit(), D.make_text(), V.make()
stats = dict(mean=[0.0] * 16, std=[1.0] * 16)
load = lambda name: torch.load(os.path.join(a.out, name), weights_only=False, map_location="cpu")
if os.path.exists(os.path.join(a.out, "vae.pt")) or not a.random:
    vae.load_state_dict(load("vae.pt")["model"])
if os.path.exists(os.path.join(a.out, "stats.json")) or not a.random:
    stats = json.load(open(os.path.join(a.out, "stats.json")))
if os.path.exists(os.path.join(a.out, "dit.pt")) or not a.random:
    s = load("dit.pt")
    model = D.make_dit(**D.size(s["model"]))
    model.load_state_dict(s["model"]); text.load_state_dict(s["text"])
    for p, e in zip(list(model.parameters()) + list(text.parameters()), s["ema"]):
        p.data.copy_(e)
    print("step", s["step"])


def folder(name):
    d = os.path.join(a.to, name)
    os.makedirs(d, exist_ok=True)
    return d


def module(m, name):
    m.save_config(folder(name))
    save_file({k: v.to(dtype).contiguous() for k, v in m.state_dict().items()},
              os.path.join(folder(name), "diffusion_pytorch_model.safetensors"), metadata={"format": "pt"})


vae.register_to_config(latents_mean=[round(x, 5) for x in stats["mean"]],
                       latents_std=[round(max(x, D.STD_FLOOR), 5) for x in stats["std"]])
module(vae, "vae")
module(model, "transformer")
text.to(dtype).save_pretrained(folder("text_encoder"))
UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0).save_config(folder("scheduler"))
make_tokenizer.main(folder("tokenizer"))
with open(os.path.join(a.to, "model_index.json"), "w") as f:
    json.dump({"_class_name": "WanPipeline", "_diffusers_version": "0.42.1", "boundary_ratio": None,
               "expand_timesteps": False, "scheduler": ["diffusers", "UniPCMultistepScheduler"],
               "text_encoder": ["transformers", "UMT5EncoderModel"], "tokenizer": ["transformers", "T5TokenizerFast"],
               "transformer": ["diffusers", "WanTransformer3DModel"], "transformer_2": [None, None],
               "vae": ["diffusers", "AutoencoderKLWan"]}, f, indent=2)
    f.write("\n")
with open(os.path.join(a.to, "weft.json"), "w") as f:
    json.dump({"width": 128, "height": 128, "num_frames": 25, "trained_frames": 61, "fps": 16, "steps": 20, "guidance_scale": 4.0,
               "flow_shift": 3.0}, f, indent=2)
    f.write("\n")
