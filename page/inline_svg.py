"""Turns an SVG file of matplotlib into a light part of an HTML page. Does not import matplotlib."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping

_REFERENCE = re.compile(r'(?:url\(#|^#)([^)]+)')
_LONG_NUMBER = re.compile(r'(-?\d+\.\d)\d+')
# What the page says itself, or what changes nothing.
_DROPPED_STYLES = ('font-family:', 'stroke-linecap: square', 'stroke-linejoin: miter')
_SHAPELESS = {'fill: none', ''}


def inline_svg(svg: str, prefix: str, label: str, variables: Mapping[str, str]) -> str:
    """A file as <svg> without size, font, metadata and useless groups, in colours of the page.

    Args:
      svg: written with svg.fonttype none. Texts in it stay as they are, escaped.
      prefix: begins each id, so that they are unique in the page.
      label: what it shows, for those who cannot see it.
      variables: the name of a CSS variable for each colour, which is written as #rrggbb.
    """
    root = ET.fromstring(svg)
    view_box = root.attrib['viewBox']
    used = {
        match[1] for element in root.iter() for value in element.attrib.values() for match in _REFERENCE.finditer(value)
    }
    for element in root.iter():
        _simplify(element, prefix, used, variables)
    _prune(root)
    root.attrib = {'viewBox': view_box, 'role': 'img', 'aria-label': label}
    return ET.tostring(root, encoding='unicode')


def _simplify(element: ET.Element, prefix: str, used: set[str], variables: Mapping[str, str]) -> None:
    element.tag = _local(element.tag)
    if element.tag != 'text':
        element.text = None
    element.tail = None
    attributes = {_local(name): value for name, value in element.attrib.items()}
    if attributes.get('id') not in used:
        attributes.pop('id', None)
    # Only a style may name a variable, an attribute may not.
    styles = [part.strip() for part in attributes.pop('style', '').split(';')]
    styles += [f'{name}: {attributes.pop(name)}' for name in ('fill', 'stroke') if name in attributes]
    style = '; '.join(part for part in styles if part and not part.startswith(_DROPPED_STYLES))
    if style:
        attributes['style'] = style
    if attributes.get('transform', '').startswith('rotate(-0 '):
        del attributes['transform']
    for name, value in attributes.items():
        if name == 'id':
            attributes[name] = f'{prefix}-{value}'
            continue
        value = _REFERENCE.sub(lambda match: match[0].replace(match[1], f'{prefix}-{match[1]}'), value)
        if name != 'style' and not value.startswith(('url(', '#')):
            # A tenth of a pixel is enough.
            value = ' '.join(_LONG_NUMBER.sub(r'\1', value).split())
        for color, variable in variables.items():
            value = value.replace(color, f'var(--{variable})')
        attributes[name] = value
    element.attrib = attributes


def _prune(element: ET.Element) -> None:
    """Removes what draws nothing, and puts the children of plain groups in the place of the group."""
    children = []
    for child in element:
        _prune(child)
        is_empty = child.tag in ('g', 'defs') and not len(child)
        is_invisible = child.tag == 'path' and child.attrib.get('style', '') in _SHAPELESS and 'id' not in child.attrib
        is_unseen = child.tag == 'path' and element.tag in ('g', 'svg') and is_invisible
        if child.tag in ('metadata', 'style') or is_empty or is_unseen:
            continue
        children += list(child) if child.tag == 'g' and not child.attrib else [child]
    element[:] = children


def _local(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition('}')[2]
