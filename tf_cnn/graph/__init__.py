"""The parts of TensorFlow that the program uses everywhere: devices, variables, staging areas, its
import.
"""
