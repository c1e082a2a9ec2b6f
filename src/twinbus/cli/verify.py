"""`twinbus verify`: read every byte of a data directory and say whether it is whole."""
