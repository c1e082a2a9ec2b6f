"""A partitioned entity as one: where each command goes, and how answers become one."""
