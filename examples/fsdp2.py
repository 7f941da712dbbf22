"""FSDP2: attach before the model is split between the processes. Each process draws its own perturbations.

    torchrun --nproc-per-node 2 examples/fsdp2.py

Without a GPU, the processes use gloo on the CPU. The data is generated: is the first symbol there again?
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from attentiondrop.torch import attach

LENGTH, SYMBOLS, WIDTH = 12, 16, 64

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--spec", default="hard(p=0.1,k=5)")
parser.add_argument("--steps", type=int, default=200)
options = parser.parse_args()
cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
rank, device = dist.get_rank(), "cuda" if cuda else "cpu"
if cuda:
    torch.cuda.set_device(rank % torch.cuda.device_count())
torch.manual_seed(0)  # the same weights in all processes
layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
model = nn.Sequential(nn.Embedding(LENGTH * SYMBOLS, WIDTH), encoder, nn.Linear(WIDTH, 2)).to(device)
attachment = attach(model, options.spec)
for block in encoder.layers:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
torch.manual_seed(1 + rank)  # other data in each process
for step in range(options.steps + 1):
    symbols = torch.randint(SYMBOLS, (64, LENGTH), device=device)
    labels = (symbols[:, 1:] == symbols[:, :1]).any(-1).long()
    last = step == options.steps
    logits = model.train(not last)(symbols + SYMBOLS * torch.arange(LENGTH, device=device))[:, 0]
    if not last:
        optimizer.zero_grad()
        F.cross_entropy(logits, labels).backward()
        optimizer.step()
right = (logits.argmax(-1) == labels).float().mean()
dist.all_reduce(right)
if rank == 0:
    print(attachment)
    print(f"{dist.get_world_size()} processes: accuracy {right.item() / dist.get_world_size():.3f}")
dist.destroy_process_group()
