#pragma once
// The messages between a server and its workers, which are WebSocket messages: texts are JSON with
// a "type", and a preview is binary.
//
// The server sends
//   welcome  {protocol, folder, file}  the folder of results, and a file in it to read
//   refused  {message}                 before it closes
//   job      {id, spec, output}        the worker draws it
//   stop     {id}                      the worker shall end that job after its step
//   end      {}                        there are no more jobs
// and the worker
//   hello    {protocol, program, name, host, pid, seen}  `seen` is what the file held
//   ready    {}                        its weights are loaded
//   progress {progress}, warning {line}, preview         of the job that it draws
//   done     {id, result}                                the end of a job
//   failed   {id, kind, message, ends} the same; `ends`: the worker takes no other job
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "engine/job/options.h"
#include "io/json.h"

namespace weft {

inline constexpr int kWorkerProtocol = 1;
inline constexpr const char* kWorkerPath = "/v1/worker";
// The variable that hands a worker the key of the server that started it.
inline constexpr const char* kWorkerKeyVariable = "WEFT_WORKER_KEY";

std::string worker_message(const char* type, Json fields = Json::object());
// Error(kModel) for what is no message.
nlohmann::json read_worker_message(std::string_view text);

// The readers throw Error(kModel) for what the writers do not write.
Json to_json(const Progress& progress);
Progress read_progress(const nlohmann::json& object);
// The middle picture of a preview.
std::string preview_message(const Preview& preview);
Preview read_preview_message(std::string_view bytes);
Json to_json(const Error& error);  // {"kind", "message"}
Error read_error(const nlohmann::json& object);

}  // namespace weft
