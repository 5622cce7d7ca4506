"""What every room needs of Python and the operating system: errors, files, processes, signals. Uses
no other room.
"""
