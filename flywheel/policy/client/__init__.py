"""Talk to model servers: answers, publication of weights, chat with other language models."""
