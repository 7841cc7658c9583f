"""A Wasserstein GAN: the critic steps twice for each step of the generator, which is part of every second step."""

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

CRITIC_STEPS, SAMPLES = 2, 8

distributed.init_process_group("gloo")
generator = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32)))
critic = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(), nn.Linear(64, 1)))
generator_optimizer = torch.optim.RMSprop(generator.parameters(), 1e-4)
critic_optimizer = torch.optim.RMSprop(critic.parameters(), 1e-4)
for _ in range(20):
    for _ in range(CRITIC_STEPS):
        with torch.no_grad():
            made = generator.module(torch.randn(SAMPLES, 16))
        critic_optimizer.zero_grad()
        (critic(made).mean() - critic(torch.randn(SAMPLES, 32)).mean()).backward()
        critic_optimizer.step()
    generator_optimizer.zero_grad()
    (-critic.module(generator(torch.randn(SAMPLES, 16))).mean()).backward()
    generator_optimizer.step()
distributed.destroy_process_group()
