#pragma once
// Writes trace files: the zones of all ranks as Chrome trace-event JSON, which ui.perfetto.dev
// opens.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/part_file.h"
#include "kernels/trace.h"

namespace weft {

// Ranks by number, each with the recording of its threads.
using RankRecords = std::vector<std::pair<int, const Recorder*>>;

// In the JSON, pid is the rank; tid is 0 for the rank's own thread and 1 ... for its helpers; ph is
// X for a zone, C for a counter and M for names. Times are in microseconds of the machine's steady
// clock, so that ranks of one machine line up.
std::string trace_json(const RankRecords& ranks,
                       const std::map<std::string, std::string>& metadata = {});

// Throws Error(kUsage) if the name does not end in .json or .json.gz, or if this build cannot
// compress.
void check_trace_name(const std::string& path);
void write_trace(const std::string& path, const RankRecords& ranks,
                 const std::map<std::string, std::string>& metadata, Overwrite overwrite);

// Compresses bytes with gzip (RFC 1952). Throws Error(kUsage) in a build without zlib.
std::string gzip(const std::string& bytes);

}  // namespace weft
