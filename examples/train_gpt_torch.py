"""The model of `train_gpt` in PyTorch, on weights of the same names: what its losses and its speed are compared with."""

import torch
import torch.nn.functional as F
from torch import Tensor


def loss(weights: dict[str, Tensor], config, batch: Tensor) -> Tensor:
    """The mean cross-entropy of the next character: (B,T+1) characters -> ()."""
    tokens, targets = batch[:, :-1], batch[:, 1:]
    size, length = tokens.shape

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])

    x = weights["token"][tokens] + weights["position"][:length]
    for i in range(config.layers):
        qkv = linear(norm(x, f"{i}.norm1"), f"{i}.qkv").view(size, length, 3, config.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(attended.transpose(1, 2).reshape(size, length, -1), f"{i}.out")
        x = x + linear(F.gelu(linear(norm(x, f"{i}.norm2"), f"{i}.up"), approximate="tanh"), f"{i}.down")
    scores = norm(x, "norm") @ weights["token"].T
    return F.cross_entropy(scores.reshape(-1, config.vocabulary), targets.reshape(-1))


class Trainer:
    """Weights and an AdamW optimizer with the settings of `train_gpt.Trainer`."""

    def __init__(self, config, weights, device: str | torch.device = "cpu", lr: float = 1e-3, *, compiled: bool = False):
        self.config, self.device = config, device
        self.weights = {name: torch.tensor(x, device=device, requires_grad=True) for name, x in weights.items()}
        self.optimizer = torch.optim.AdamW(self.weights.values(), lr=lr, betas=(0.9, 0.95))
        self.loss = torch.compile(loss) if compiled else loss

    def train(self, batch) -> Tensor:
        """One step on (B,T+1) characters. Returns the loss before it."""
        value = self.loss(self.weights, self.config, torch.as_tensor(batch, device=self.device))
        self.optimizer.zero_grad()
        value.backward()
        self.optimizer.step()
        return value.detach()
