#pragma once
// Draws a stream: its faces over time, and below them what it does, how loud its sound is and how
// far the mouth is open.
#include <span>
#include <string>

#include "engine/session/session.h"

namespace weft {

// One SVG picture, which holds its faces as PNG pictures.
std::string stream_svg(std::span<const SessionSlot> slots, double fps, const std::string& title);

}  // namespace weft
