"""TensorFlow building blocks for all packages: devices, variables, staging areas, the import."""
