#include "apps/model_folder.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "io/part_file.h"
#include "io/text/utf8.h"
#include "kernels/check.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// The kind of folder that a command reads, and a repository that has one.
struct FolderKind {
  std::string legal, repository;
};

FolderKind kind_for(Command command) {
  if (command == kComplete)
    return {
        "a language model's folder: config.json, tokenizer.json and safetensors (Qwen2.5, "
        "Qwen3)",
        "Qwen/Qwen3-0.6B"};
  return {
      "a model folder in the diffusers layout: model_index.json beside transformer/, "
      "text_encoder/, tokenizer/, vae/ and scheduler/",
      "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"};
}

std::string download(const std::string& repository) {
  const std::string folder = "models/" + repository.substr(repository.find('/') + 1);
  return "hf download " + repository + " --local-dir " + folder + ", then give --model " + folder;
}

// The model folder that a file lies in, at most two folders up; "" where there is none.
std::string folder_around(const std::string& file, Command command) {
  const char* mark = command == kComplete ? "tokenizer.json" : "model_index.json";
  fs::path folder = fs::path(file).parent_path();
  for (int up = 0; up < 2; ++up, folder = folder.parent_path())
    if (fs::exists(folder / mark)) return folder.empty() ? "." : folder.string();
  return "";
}

bool is_repository_name(const std::string& path) {
  const size_t slash = path.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == path.size() ||
      path.find('/', slash + 1) != std::string::npos || path.starts_with('.') ||
      path.starts_with('~') || fs::exists(path.substr(0, slash)))
    return false;
  return std::ranges::all_of(path, [](unsigned char c) {
    return std::isalnum(c) || c == '/' || c == '.' || c == '-' || c == '_';
  });
}

// Says which flag takes a single file of weights, where the command has one.
std::string advice_of_file(Command command) {
  if (!find_flag(command, "transformer")) return "";
  return ", which --transformer, --text-encoder or --vae takes (weft inspect FILE tells which)";
}

// Says what a path is that is no folder, and what to do.
std::string fault(const std::string& path, Command command) {
  const FolderKind kind = kind_for(command);
  const std::string legal = "; legal: " + kind.legal;
  const std::string instead = legal + ". Download one with " + download(kind.repository);
  const std::string extension = file_ending(path);
  if (extension == ".gguf") return "a GGUF file of weights" + advice_of_file(command) + instead;
  if (extension == ".safetensors") {
    const std::string folder = folder_around(path, command);
    return "a single file of weights" + advice_of_file(command) +
           (folder.empty()
                ? instead
                : legal + ". This file belongs to such a folder: give --model " + folder);
  }
  for (const char* pickle : {".pth", ".pt", ".ckpt", ".bin"})
    if (extension == pickle)
      return "a pickle file, which is not read because loading it can run code" + instead;
  if (fs::exists(path)) return "a file" + instead;
  const std::string advice = download_advice(path);
  return "no folder that exists, and " + places_searched() +
         (advice.empty() ? legal : "; " + advice + legal);
}

}  // namespace

std::string download_advice(const std::string& path) {
  if (path.starts_with("https://huggingface.co/"))
    return download_advice(path.substr(std::string("https://huggingface.co/").size()));
  if (!is_repository_name(path)) return "";
  return "it looks like the name of a Hugging Face repository, and Weft downloads nothing: run " +
         download(path);
}

PartFiles part_files(const Flags& flags) {
  PartFiles files;
  for (const auto& [name, path] : kParts) {
    std::string flag = name;
    std::ranges::replace(flag, '_', '-');
    if (!find_flag(flags.command(), flag) || flags.text(flag).empty()) continue;
    const std::string given = flags.text(flag);
    if (!fs::exists(given))
      throw Error(ErrorKind::kUsage,
                  flags.label(flag) + " is '" + given + "', no file that exists");
    files.*path = fs::absolute(given).lexically_normal().string();
  }
  return files;
}

std::shared_ptr<const OpenModel> open_model(const Flags& flags) {
  const PartFiles files = part_files(flags);
  std::vector<Lora> loras;
  if (find_flag(flags.command(), "lora"))
    loras = parse_loras(path_text(flags.text("lora")), flags.label("lora"));
  const bool alone = flags.text("model").empty() && !files.transformer.empty();
  return std::make_shared<const OpenModel>(alone ? "" : model_folder(flags), std::move(loras),
                                           files);
}

std::string model_folder(const Flags& flags) {
  const std::string path = flags.text("model");
  const CommandSpec& command = command_spec(flags.command());
  if (path.empty())
    throw Error(ErrorKind::kUsage,
                std::string("weft ") + command.name + " needs --model FOLDER" +
                    (find_flag(flags.command(), "transformer") ? " or --transformer FILE" : ""));
  const std::string found = search_model(path);
  if (!fs::is_directory(found))
    throw Error(ErrorKind::kModel,
                flags.label("model") + " is '" + path + "', " + fault(path, flags.command()));
  return found;
}

}  // namespace weft
