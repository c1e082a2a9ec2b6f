"""What is counted: metrics by Azure Monitor's names, and operations that Azure would bill."""
