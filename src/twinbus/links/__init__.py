"""What gateways and brokers say to each other: one `StoreLink` a store, wherever it is run."""

__all__ = ["request", "sink", "store_link", "transactions", "wrapper"]
