"""Your own PyTorch training loop, shared by any number of workers: on which of four rings is a point?

`python model_zoo/own_loop/rings.py` trains it alone. The workers of a job run the same file: workers come and go, and
the weights are those of the single run.
"""

import torch

import elasticdl.api as elasticdl

RECORDS, VALIDATION = 8000, 1000


def load(numbers):
    """Features and labels of these records; here they are computed from their numbers, elsewhere you read them."""
    numbers = torch.as_tensor(numbers)
    ring, angle = numbers % 4, numbers * 2.399963  # the golden angle never repeats
    noise = torch.sin(numbers * 12.9898) * 43758.5453 % 1.0
    radius = 0.5 * ring + 0.2 + 0.35 * noise
    return torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], 1).float(), ring


def main():
    job = elasticdl.join(minibatch_size=64, num_epochs=3, evaluation_steps=100, virtual_workers=4)
    torch.manual_seed(job.spec.seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 64), torch.nn.ReLU(),
        torch.nn.Linear(64, 4),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def evaluate(numbers):
        features, labels = load(RECORDS + numbers)
        model.eval()
        with torch.no_grad():
            right = model(features).argmax(1) == labels
        model.train()
        return {"accuracy": right.float().mean()}

    elastic = job.elastic(
        model, optimizer, records=RECORDS, evaluate=evaluate, validation_records=VALIDATION,
        evaluated=lambda step, metrics: print(f"step {step}: {metrics}", flush=True),
    )  # fmt: skip
    for part in elastic.parts():
        features, labels = load(part.records)
        loss = torch.nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        elastic.step(loss)
    print(f"{elastic.committed_steps} steps, {elastic.records_trained} records", flush=True)


if __name__ == "__main__":
    main()
