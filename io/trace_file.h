#pragma once
// Trace files: the zones of ranks in Chrome's trace-event JSON, as ui.perfetto.dev opens it.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/part_file.h"
#include "kernels/trace.h"

namespace weft {

// Ranks by their number, with what was recorded on their threads.
using RankRecords = std::vector<std::pair<int, const Recorder*>>;

// pid = rank; tid 0 = the rank's own thread, 1 ... its helpers; ph X a zone, C a counter, M names;
// times in microseconds of the machine's steady clock, so that ranks of one machine line up.
std::string trace_json(const RankRecords& ranks,
                       const std::map<std::string, std::string>& metadata = {});

// Error(kUsage) where the name does not end in .json or .json.gz, or this build cannot compress.
void check_trace_name(const std::string& path);
void write_trace(const std::string& path, const RankRecords& ranks,
                 const std::map<std::string, std::string>& metadata, Overwrite overwrite);

// gzip (RFC 1952). Error(kUsage) in a build without zlib.
std::string gzip(const std::string& bytes);

}  // namespace weft
