#include "apps/model_argument.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "apps/model_folder.h"
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

std::string lower_extension(const std::string& path) {
  std::string extension = fs::path(path).extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return extension;
}

bool is_weights_file(const std::string& path) {
  const std::string extension = lower_extension(path);
  for (const char* known : {".safetensors", ".gguf", ".pth", ".pt", ".ckpt", ".bin"})
    if (extension == known) return true;
  return false;
}

// The model folder that a file lies in, at most two folders up; "" where there is none.
std::string folder_around(const std::string& file, Command command) {
  const char* mark = command == kComplete ? "tokenizer.json" : "model_index.json";
  fs::path folder = fs::path(file).parent_path();
  for (int up = 0; up < 2; ++up, folder = folder.parent_path())
    if (fs::exists(folder / mark)) return folder.empty() ? "." : folder.string();
  return "";
}

// Says what a path is that is no folder, and what to do.
std::string fault(const std::string& path, Command command) {
  const FolderKind kind = kind_for(command);
  const std::string legal = "; legal: " + kind.legal;
  const std::string instead = legal + ". Download one with " + download_command(kind.repository);
  const std::string extension = lower_extension(path);
  if (extension == ".gguf")
    return "a GGUF file (quantized weights of llama.cpp or stable-diffusion.cpp), which is not "
           "supported yet; 8-bit weights are made while loading, with --weights int8 on a CPU and "
           "--weights fp8 on a GPU" +
           instead;
  if (extension == ".safetensors") {
    const std::string folder = folder_around(path, command);
    return "a single file of weights; checkpoints of one file are not supported yet" +
           (folder.empty()
                ? instead
                : legal + ". This file belongs to such a folder: give --model " + folder);
  }
  if (is_weights_file(path))
    return "a pickle file, which is not read because loading it can run code" + instead;
  if (fs::exists(path)) return "a file" + instead;
  return "no folder that exists" + legal;
}

}  // namespace

std::string model_argument(const Flags& flags) {
  const std::string path = flags.text("model");
  const CommandSpec& command = command_spec(flags.command());
  const FlagSpec* spec = find_flag(flags.command(), "model");
  if (path.empty())
    throw Error(ErrorKind::kUsage,
                std::string("weft ") + command.name + " needs --model FOLDER" +
                    (spec->environment ? std::string(" (or ") + spec->environment + ")" : ""));
  std::string folder = path;
  if (!is_weights_file(path)) {
    try {
      folder = model_folder(path);
    } catch (const Error& error) {
      throw Error(error.kind(), flags.label("model") + " " + error.what());
    }
  }
  if (!fs::is_directory(folder))
    throw Error(ErrorKind::kModel,
                flags.label("model") + " is '" + path + "', " + fault(folder, flags.command()));
  return folder;
}

}  // namespace weft
