#include "engine/job/checkpoint.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/part_file.h"
#include "io/sha256.h"
#include "io/weights/tensor_file.h"

namespace weft {

namespace fs = std::filesystem;

namespace {

constexpr const char* kStepsSchema = "weft.checkpoint/v2";
constexpr const char* kLatentsSchema = "weft.latents/v2";
// Prefixes of the metadata keys that hold notes and facts of written frames.
constexpr std::string_view kNote = "note.", kWritten = "written.";

std::string hash_of(const TensorView& view) {
  return sha256_hex({static_cast<const char*>(view.data), view.bytes()});
}

// Hashes every metadata entry except the one that holds this hash.
std::string metadata_hash(const std::map<std::string, std::string>& metadata) {
  nlohmann::json rest(metadata);
  rest.erase("metadata_sha256");
  return sha256_hex(rest.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

const char* latent_name(const Checkpoint& checkpoint) {
  return checkpoint.final() ? "latents" : "latent.clip.0";
}

Tensor owned(const TensorView& mapped) {
  Tensor out(mapped.dtype, mapped.shape());
  std::memcpy(out.view().data, mapped.data, mapped.bytes());
  return out;
}

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw Error(ErrorKind::kModel, path + ": " + reason);
}

// Reads the metadata of a checkpoint. Metadata whose hash differs from the stored one is refused.
Checkpoint from_metadata(const std::string& path,
                         const std::map<std::string, std::string>& metadata) {
  const auto at = [&](const char* key) -> const std::string& {
    const auto found = metadata.find(key);
    if (found == metadata.end()) refuse(path, std::string("is no checkpoint: it has no ") + key);
    return found->second;
  };
  if (at("schema") != kStepsSchema && at("schema") != kLatentsSchema)
    refuse(path,
           "has the schema '" + at("schema") + "', legal: " + kStepsSchema + ", " + kLatentsSchema);
  if (at("metadata_sha256") != metadata_hash(metadata))
    refuse(path, "its metadata are damaged (their SHA-256 differs)");
  Checkpoint out;
  out.path = path;
  out.job = at("job");
  out.step = std::stoi(at("step"));
  out.total = std::stoi(at("total"));
  out.seconds = std::stod(at("seconds"));
  out.text_hash = at("text_sha256");
  out.signature = at("signature");
  for (const auto& [key, value] : metadata)
    if (key.starts_with(kNote))
      out.notes[key.substr(kNote.size())] = value;
    else if (key.starts_with(kWritten))
      out.written[key.substr(kWritten.size())] = value;
  return out;
}

}  // namespace

void write_checkpoint(const std::string& path, const Checkpoint& checkpoint,
                      const TensorView& latent, const TensorParts& parts) {
  std::vector<std::pair<std::string, TensorView>> tensors;
  tensors.emplace_back(latent_name(checkpoint), latent);
  for (const auto& [name, tensor] : checkpoint.history) tensors.emplace_back(name, tensor.view());
  nlohmann::json hashes = nlohmann::json::object();
  for (const auto& [name, view] : tensors)
    hashes[name] = view.data ? hash_of(view) : checkpoint.signature;
  std::map<std::string, std::string> metadata{
      {"schema", checkpoint.final() ? kLatentsSchema : kStepsSchema},
      {"job", checkpoint.job},
      {"step", std::to_string(checkpoint.step)},
      {"total", std::to_string(checkpoint.total)},
      {"seconds", std::to_string(checkpoint.seconds)},
      {"text_sha256", checkpoint.text_hash},
      {"signature", checkpoint.signature},
      {"tensor_sha256", hashes.dump()}};
  for (const auto& [name, value] : checkpoint.notes) metadata[std::string(kNote) + name] = value;
  for (const auto& [name, value] : checkpoint.written)
    metadata[std::string(kWritten) + name] = value;
  metadata["metadata_sha256"] = metadata_hash(metadata);
  write_safetensors(path, tensors, metadata, parts);
}

namespace {

Checkpoint read_whole(const std::string& path) {
  const TensorFile file = TensorFile::open(path);
  Checkpoint out = from_metadata(path, file.metadata());
  const nlohmann::json hashes = parse_json(file.metadata().at("tensor_sha256"), path);
  for (const auto& [name, hash] : hashes.items()) {
    if (!file.contains(name)) refuse(path, "holds no tensor " + name);
    const TensorView mapped = file.view(name);
    if (mapped.dtype != DType::kF32) refuse(path, name + " is not f32");
    Tensor tensor = owned(mapped);
    if (hash_of(tensor) != hash.get<std::string>())
      refuse(path, name + " is damaged (its SHA-256 differs)");
    if (name == latent_name(out))
      out.latent = std::move(tensor);
    else
      out.history.emplace_back(name, std::move(tensor));
  }
  if (!out.latent) refuse(path, std::string("holds no tensor ") + latent_name(out));
  return out;
}

}  // namespace

Checkpoint read_checkpoint(const std::string& path) {
  try {
    return read_whole(path);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // thrown by the JSON and number readers
    refuse(path, std::string("is no checkpoint: ") + error.what());
  }
}

std::string older_checkpoint(const std::string& path) {
  const fs::path whole(path);
  return (whole.parent_path() / (whole.stem().string() + ".old" + whole.extension().string()))
      .string();
}

void remove_checkpoints(const std::string& path) {
  std::error_code ignored;
  fs::remove(path, ignored);
  fs::remove(older_checkpoint(path), ignored);
  const PartFile left(path, Overwrite::kReplace);  // removes the part file of a killed job
}

void CheckpointWriter::wait() {
  if (thread_.joinable()) thread_.join();
}

std::string CheckpointWriter::take_error() { return std::exchange(error_, {}); }

void CheckpointWriter::write(Checkpoint checkpoint) {
  wait();
  busy_ = true;
  thread_ = std::thread([this, checkpoint = std::move(checkpoint)] {
    try {
      // The previous checkpoint is renamed first. It stays the newest until the new one is
      // complete.
      if (std::rename(path_.c_str(), older_checkpoint(path_).c_str()) != 0 && errno != ENOENT)
        throw_system_error("rename", path_, errno);
      write_checkpoint(path_, checkpoint, checkpoint.latent);
      kept_ = checkpoint.step;
    } catch (const std::exception& error) {
      error_ = error.what();
    }
    busy_ = false;
  });
}

}  // namespace weft
