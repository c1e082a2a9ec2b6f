"""What gateways and brokers say to each other: one `StoreLink` a store, wherever it is run."""
