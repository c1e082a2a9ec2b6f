"""What operators ask over HTTP: health, metrics, meter, faults, namespaces."""
