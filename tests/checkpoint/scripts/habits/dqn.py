"""Deep Q-learning in a small corridor: a replay memory in a deque, a target network, epsilon that falls."""

import math
import random
import sys
from collections import deque, namedtuple

import torch
from torch import nn

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))
LENGTH, BATCH, GAMMA, TAU = 5, 8, 0.95, 0.1
random.seed(73)
torch.manual_seed(73)


def observe(position):
    return nn.functional.one_hot(torch.tensor([position]), LENGTH).float()


policy_net = nn.Sequential(nn.Linear(LENGTH, 16), nn.ReLU(), nn.Linear(16, 2))
target_net = nn.Sequential(nn.Linear(LENGTH, 16), nn.ReLU(), nn.Linear(16, 2))
target_net.load_state_dict(policy_net.state_dict())
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=5e-3)
memory = deque([], maxlen=200)
steps_done = 0


def select_action(state):
    global steps_done
    threshold = 0.05 + 0.85 * math.exp(-steps_done / 30)
    steps_done += 1
    if random.random() > threshold:
        with torch.no_grad():
            return policy_net(state).argmax(1).item()
    return random.randrange(2)


def optimize_model():
    if len(memory) < BATCH:
        return
    batch = Transition(*zip(*random.sample(memory, BATCH)))
    values = policy_net(torch.cat(batch.state)).gather(1, torch.tensor(batch.action).unsqueeze(1))
    with torch.no_grad():
        best_next = target_net(torch.cat(batch.next_state)).max(1).values
    expected = torch.tensor(batch.reward) + GAMMA * best_next
    loss = nn.SmoothL1Loss()(values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()


returns = []
for episode in range(6):
    position, total = 0, 0.0
    for t in range(10):
        action = select_action(observe(position))
        moved = min(max(position + (1 if action else -1), 0), LENGTH - 1)
        reward = 1.0 if moved == LENGTH - 1 else -0.1
        memory.append(Transition(observe(position), action, observe(moved), reward))
        position, total = moved, total + reward
        optimize_model()
        for target, policy in zip(target_net.parameters(), policy_net.parameters()):
            target.data.copy_(TAU * policy.data + (1 - TAU) * target.data)
        if reward > 0:
            break
    returns.append(total)
    print(f"episode {episode}: return {total:.1f} after {t + 1} steps")
torch.save({"policy": policy_net.state_dict(), "returns": returns, "steps": steps_done}, sys.argv[1])
