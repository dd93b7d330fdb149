#pragma once
// The file of a job's newest preview.
#include <string>

#include "apps/command_line/flags.h"
#include "engine/preview/preview.h"

namespace weft {

// Steps between previews, 0 for --preview none.
int preview_every(const Flags& flags);

// The file of the previews of a drawing: --preview-path, or else a name beside its output,
// .preview.gif for clips and .preview.png for pictures; "" for --preview none. Error(kUsage) where
// several drawings would share a file, or for another extension than .png and .gif.
std::string preview_path(const Flags& flags, const std::string& output, bool several,
                         int64_t frames);

// Writes a preview, which replaces the one before in one step: a GIF of all pictures, or a PNG of
// the middle one. Error(kOutput).
void write_preview(const std::string& path, const Preview& preview);

}  // namespace weft
