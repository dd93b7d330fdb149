#include "apps/inspect/file_use.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "apps/command_line/printable.h"
#include "apps/commands.h"
#include "engine/parts/open_model.h"
#include "models/files/tokenizer_files.h"
#include "models/lora/lora.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostFiles = 256;  // that are opened in search of the other parts
constexpr const char kPrompt[] = " --prompt 'a cat on grass' -o ";

bool is_weights(const fs::path& path) {
  const std::string name = path.filename().string();
  const bool shard = name.find("-of-") != std::string::npos;
  return !name.starts_with('.') &&
         ((name.ends_with(".safetensors") && !shard) ||
          (name.ends_with(".gguf") && (!shard || name.find("-00001-of-") != std::string::npos)));
}

// The weights files of a folder, by name.
void list_weights(const fs::path& folder, std::vector<std::string>& out) {
  std::error_code error;
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (is_weights(entry.path()) && entry.is_regular_file(error))
      found.push_back(entry.path().string());
  std::ranges::sort(found);
  for (std::string& path : found)
    if (out.size() < kMostFiles) out.push_back(std::move(path));
}

// The weights files beside `path`, then the ones in the folders beside its folder.
std::vector<std::string> files_around(const std::string& path) {
  const fs::path own = fs::absolute(path).lexically_normal().parent_path();
  std::vector<std::string> out;
  list_weights(own, out);
  std::error_code error;
  std::vector<fs::path> folders;
  for (const fs::directory_entry& entry : fs::directory_iterator(own.parent_path(), error))
    if (entry.is_directory(error) && entry.path() != own) folders.push_back(entry.path());
  std::ranges::sort(folders);
  for (const fs::path& folder : folders) list_weights(folder, out);
  return out;
}

std::shared_ptr<const TransformerModel> transformer_in(const std::string& path) {
  return open_transformer(open_part_weights(PartKind::kTransformer, path));
}

// The files around a file, by the classes of the components that they hold. Those whose tensors may
// also be of a class come after the others.
using Found = std::map<std::string, std::vector<std::string>>;

Found components_around(const std::string& path) {
  Found out;
  std::vector<std::pair<std::string, std::string>> others;  // class, file
  for (const std::string& file : files_around(path)) {
    try {
      for (const ComponentFacts& facts : held_components(file)) {
        if (facts.tensors.empty()) continue;
        out[facts.class_name].push_back(file);
        for (const std::string& other : facts.other_classes) others.emplace_back(other, file);
      }
    } catch (const Error&) {
      continue;  // it is no part of the answer
    }
  }
  for (const auto& [class_name, file] : others) out[class_name].push_back(file);
  return out;
}

// The file of the other expert, which has the other word in its name; "" where there is none.
std::string other_expert(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  const std::string name = fs::path(path).filename().string();
  for (const auto& [one, other] : {std::pair<std::string, std::string>{"high", "low"},
                                   {"low", "high"},
                                   {"High", "Low"},
                                   {"Low", "High"},
                                   {"HIGH", "LOW"},
                                   {"LOW", "HIGH"}})
    if (const size_t at = name.find(one); at != std::string::npos) {
      std::string twin = name;
      twin.replace(at, one.size(), other);
      if (const fs::path file = folder / twin; fs::exists(file)) return file.string();
    }
  return "";
}

bool says_low(const std::string& path) {
  std::string name = fs::path(path).filename().string();
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name.find("low") != std::string::npos && name.find("high") == std::string::npos;
}

// The two experts of a pair, in their order.
PartFiles with_experts(const std::string& transformer) {
  PartFiles files;
  files.transformer = transformer;
  files.transformer_2 = other_expert(transformer);
  if (!files.transformer_2.empty() && says_low(transformer))
    std::swap(files.transformer, files.transformer_2);
  return files;
}

// Opens the files as a model; the error's text is what is wrong.
std::string fault_of(const PartFiles& files) {
  try {
    const OpenModel model("", {}, files);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::vector<std::string> of_class(const Found& found, const std::string& class_name) {
  const auto at = found.find(class_name);
  return at == found.end() ? std::vector<std::string>{} : at->second;
}

// A model of single files that holds a given one, and what it lacks.
struct Use {
  PartFiles files;
  std::vector<std::string> missing;  // "--vae FILE (an AutoencoderKLWan)"
  bool pictures = false;
  const ModelFamily* family = nullptr;
};

// A part that a model needs beside its transformer.
struct NeededPart {
  std::string PartFiles::*file;
  const char* flag;
  const char* class_name;
};

std::vector<NeededPart> needed_parts(const ModelFamily& family, const TransformerTraits& traits) {
  std::vector<NeededPart> parts{
      {&PartFiles::text_encoder, "--text-encoder FILE", family.text_encoder_class}};
  if (family.pooled.encoder)
    parts.push_back(
        {&PartFiles::text_encoder_2, "--text-encoder-2 FILE", family.pooled_encoder_class});
  parts.push_back({&PartFiles::vae, "--vae FILE", family.vae_class});
  if (traits.image_columns > 0)
    parts.push_back({&PartFiles::image_encoder, "--image-encoder FILE", "CLIPVisionModel"});
  return parts;
}

// Lists the flags of the parts that are not there.
void add_missing(const std::vector<NeededPart>& parts, Use& use) {
  for (const NeededPart& part : parts)
    if ((use.files.*part.file).empty())
      use.missing.push_back(std::string(part.flag) + " (" + part.class_name + ")");
  for (const auto& [folders, encoder, flag] :
       {std::tuple{&use.family->text, &use.files.text_encoder, "--tokenizer FILE"},
        {&use.family->pooled, &use.files.text_encoder_2, "--tokenizer-2 FILE"}})
    if (folders->encoder && !encoder->empty() &&
        find_tokenizer(*encoder, folders->kind, folders->tokenizer).empty())
      use.missing.push_back(std::string(flag) + " (" + files_of(folders->kind) + ")");
}

// Looks for the parts that the transformer of `files` lacks.
Use completed(const PartFiles& files, const Found& found) {
  constexpr size_t kMostTried = 64;  // choices of files
  Use use;
  use.files = files;
  const std::vector<ComponentFacts> held = held_components(files.transformer);
  const bool transformer =
      !held.empty() && held[0].part == "transformer" && !held[0].tensors.empty();
  use.family = transformer ? family_of_transformer(held[0].class_name) : nullptr;
  if (!use.family) return use;
  const std::vector<NeededPart> parts =
      needed_parts(*use.family, transformer_in(files.transformer)->traits());
  std::vector<std::vector<std::string>> candidates;
  size_t choices = 1;
  for (const NeededPart& part : parts) {
    const std::string& own = files.*part.file;
    candidates.push_back(own.empty() ? of_class(found, part.class_name)
                                     : std::vector<std::string>{own});
    if (candidates.back().empty()) candidates.back().emplace_back();
    choices *= candidates.back().size();
  }
  for (size_t choice = 0; choice < std::min(choices, kMostTried); ++choice) {
    PartFiles whole = files;
    bool complete = true;
    size_t rest = choice;
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::vector<std::string>& those = candidates[i];
      const std::string& path = whole.*parts[i].file = those[rest % those.size()];
      complete = complete && !path.empty();
      rest /= those.size();
    }
    if (choice == 0) use.files = whole;
    if (complete && fault_of(whole).empty()) {
      use.files = whole;
      return use;
    }
  }
  add_missing(parts, use);
  if (use.missing.empty()) use.missing.push_back(fault_of(use.files));
  return use;
}

std::string command_of(const Use& use, const std::string& more) {
  std::string out = shell_word(program_name()) + " generate";
  for (const auto& [name, path] : kParts) {
    std::string flag = name;
    std::ranges::replace(flag, '_', '-');
    const std::string& file = use.files.*path;
    const bool lacks = std::ranges::any_of(use.missing, [&](const std::string& missing) {
      return missing.starts_with("--" + flag + " ");
    });
    if (!file.empty())
      out += " --" + flag + " " + shell_word(file);
    else if (lacks)
      out += " --" + flag + " FILE";
  }
  return out + more + kPrompt + (use.pictures ? "out.png" : "out.mp4");
}

// The model folder that a file lies in, at most two folders up; "" where there is none.
std::string folder_around(const std::string& file) {
  fs::path folder = fs::absolute(file).lexically_normal().parent_path();
  for (int up = 0; up < 2; ++up, folder = folder.parent_path())
    if (fs::exists(folder / "model_index.json")) return folder.string();
  return "";
}

// The published models whose transformers have such tensors: alone, or as one of two experts.
std::vector<std::string> published(const std::string& path, const ModelFamily& family) {
  std::vector<std::string> names;
  ModelDirectory model;
  model.path = path;
  model.family = &family;
  for (int experts = 1; experts <= 2; ++experts) {
    model.transformers.push_back(transformer_in(path));
    if (experts == 2) model.transformer_2 = path;
    const std::string name = family.defaults(model).name;
    if (name != folder_name(path)) names.push_back(experts == 2 ? "an expert of " + name : name);
  }
  return names;
}

// Returns whether the model of a folder draws single pictures; false where it cannot be opened.
bool draws_pictures(const std::string& folder) {
  try {
    return open_model_directory(folder).defaults.frames == 1;
  } catch (const Error&) {
    return false;
  }
}

void add_command(const Use& use, const std::string& more, Json& object) {
  if (!use.family) return;
  object["command"] = command_of(use, more);
  if (!use.missing.empty()) object["missing"] = use.missing;
}

// Returns whether the family's defaults are of single pictures.
bool draws_pictures(const Use& use) {
  ModelDirectory model;
  model.path = use.files.transformer;
  model.transformers.push_back(transformer_in(use.files.transformer));
  return use.family->defaults(model).frames == 1;
}

// The commands of files that are no transformer need one. The first around that makes a whole model
// with them is taken.
Use around_part(const ComponentFacts* facts, const std::string& path, const Found& found) {
  std::optional<Use> best;
  size_t least = 0;  // what the best one lacks; a class that the tensors only may be counts little
  const std::string part = facts ? facts->part : "";
  for (const auto& [class_name, files] : found) {
    const ModelFamily* family = family_of_transformer(class_name);
    if (!family) continue;
    const bool text = part == "text_encoder" && facts->may_be(family->text_encoder_class),
               pooled = part == "text_encoder" && family->pooled_encoder_class &&
                        facts->may_be(family->pooled_encoder_class);
    if (part == "text_encoder" && !text && !pooled) continue;
    for (const std::string& transformer : files) {
      PartFiles given = with_experts(transformer);
      if (text) given.text_encoder = path;
      if (pooled) given.text_encoder_2 = path;
      if (part == "vae") given.vae = path;
      if (part == "image_encoder") given.image_encoder = path;
      Use use = completed(given, found);
      const bool other = text && facts->class_name != family->text_encoder_class;
      const size_t lacks = 2 * use.missing.size() + other;
      if (!best || lacks < least) {
        best = std::move(use);
        least = lacks;
      }
      if (least == 0) return *best;
    }
  }
  return best.value_or(Use{});
}

}  // namespace

const KnownModel* known_transformer(const std::string& class_name, const TransformerModel& model) {
  const ModelFamily* family = family_of_transformer(class_name);
  return family ? known_model(family->known, model.traits()) : nullptr;
}

void add_licence(const KnownModel* known, Json& object) {
  if (known)
    object["licence"] = {{"name", known->licence},
                         {"commercial_use", known->is_free() ? "free" : known->restriction},
                         {"of", std::string(known->name) + ", which has these sizes"}};
}

void add_use(const std::string& path, const TensorFile& file, Json& object) {
  const std::vector<ComponentFacts> held = held_components(path);
  const ComponentFacts* facts = held.empty() ? nullptr : &held[0];
  const std::optional<std::string> lora = facts ? std::nullopt : lora_family(file);
  if (facts) {
    object["part"] = facts->part;
    object["class"] = facts->class_name;
    if (!facts->description.empty()) object["config"] = facts->description;
    if (held.size() > 1 || !facts->prefix.empty()) object["holds"] = Json::array();
    for (const ComponentFacts& each : held)
      if (object.contains("holds"))
        object["holds"].push_back(
            {{"prefix", each.prefix}, {"part", each.part}, {"class", each.class_name}});
  }
  if (!file.unread().empty()) object["not_read"] = file.unread();
  if (lora) object["lora"] = *lora;
  if (fs::is_regular_file(path) && facts && facts->part == "transformer" && !facts->tensors.empty())
    add_licence(known_transformer(facts->class_name, *transformer_in(path)), object);
  if (fs::is_regular_file(path) && facts && facts->part == "text_encoder" && holds_tokenizer(path))
    object["tokenizer"] = "inside";
  if (!fs::is_regular_file(path) || (!facts && !lora) || (facts && facts->tensors.empty())) return;
  if (const std::string folder = folder_around(path); !folder.empty()) {
    object["command"] = shell_word(program_name()) + " generate --model " + shell_word(folder) +
                        (lora ? " --lora " + shell_word(path) : "") + kPrompt +
                        (draws_pictures(folder) ? "out.png" : "out.mp4");
    return;
  }
  const Found found = components_around(path);
  Use use;
  if (facts && facts->part == "transformer") {
    if (const ModelFamily* family = family_of_transformer(facts->class_name))
      if (const std::vector<std::string> names = published(path, *family); !names.empty())
        object["model"] = names;
    use = completed(with_experts(path), found);
  } else {
    use = around_part(facts, path, found);
  }
  if (use.family) use.pictures = draws_pictures(use);
  add_command(use, lora ? " --lora " + shell_word(path) : "", object);
  if (!use.family)
    object["missing"] =
        Json::array({facts && facts->part == "transformer"
                         ? "--model FOLDER: no command draws with this transformer alone"
                         : "--transformer FILE, and the other parts of its model"});
}

}  // namespace weft
