#pragma once
// The parameters that clients of OpenAI's routes send, and those that other servers of these routes
// added, as the fields of a job.
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/generation/generator.h"
#include "kernels/check.h"

namespace weft {

// A refusal of a parameter, whose name its message begins with.
struct ClientFault : Error {
  ClientFault(std::string code_, std::string param_, const std::string& message)
      : Error(ErrorKind::kUsage, message), code(std::move(code_)), param(std::move(param_)) {}
  std::string code, param;  // invalid_request, unsupported_parameter, model_not_found
};

// The facts of a model that decide which parameters it takes.
struct ClientModel {
  std::vector<std::string> ids{};  // that clients may call it by; the first is its own
  std::string name{};              // for messages
  bool has_cfg = true;             // classifier-free guidance, which costs a second forward
  bool guides_from_zero = false;   // its guidance_scale is one less than that of others
  bool has_teacache = false;       // a polynomial is known
  std::optional<double> boundary_ratio{};
  int least_pictures = 0, most_pictures = 0;  // of a job: its first and last frames
  int most_references = 0;                    // pictures that it edits, in place of these
  bool hears = false;                         // its videos follow a sound
};
// `served_names` are further ids, from --served-model-name.
ClientModel client_model(const Generator& generator, const std::vector<std::string>& served_names);
// The model's name in lower case, without characters that have a meaning in URLs.
std::string model_id(std::string_view name);
// The id of the model that clients call so; "" calls the model by its own. ClientFault.
std::string id_of_model(const ClientModel& model, const std::string& called);

struct ClientJob {
  nlohmann::json fields{};  // of a job
  // The fields that the client called by other names, and these names.
  std::vector<std::pair<std::string, std::string>> renamed{};
  std::string model{}, quality{};  // as the client named them; "": it did not
};

// Puts the parameters inside "extra_body" and "extra_params" beside them. ClientFault.
nlohmann::json flat_parameters(nlohmann::json given);

// Translates an object of flat parameters. Those with a null are absent, and texts are taken for
// numbers and switches, as forms have them. `own` are the parameters that the caller has taken out
// of it, for suggestions alone; pictures and sounds are among them. A model of nullptr is that of
// a batch's lines, which may have all fields of a job. ClientFault; values of fields are checked
// where the job is read.
ClientJob client_job(const nlohmann::json& given, const ClientModel* model,
                     std::span<const std::string> own = {});

// Texts that are JSON objects and lists in place of these, as forms have them. ClientFault.
nlohmann::json structured(const std::string& name, const nlohmann::json& value);

// "true" and "false" are switches, too. ClientFault.
bool switch_of(const std::string& name, const nlohmann::json& value);
// A text that is one of "a|b|c". ClientFault.
std::string word_of(const std::string& name, const nlohmann::json& value, const char* legal);
// A whole number, or a text that is one, of a range "1 ... 10". ClientFault.
int64_t count_of(const std::string& name, const nlohmann::json& value, const char* legal);

}  // namespace weft
