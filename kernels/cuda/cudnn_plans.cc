#include "kernels/cuda/cudnn_plans.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>

#include "kernels/cuda/device.h"

namespace weft {

namespace {

std::mutex plan_folder_mutex;
std::string plan_folder;

}  // namespace

void keep_cuda_plans(const std::string& folder) {
  const std::lock_guard lock(plan_folder_mutex);
  plan_folder = folder;
}

namespace cuda {

namespace {

// A plan's file has the key in its first line, and cuDNN's text after it. The key says what the
// compiled code depends on; its hash is the file's name.
struct KeptPlan {
  KeptPlan(const CudaQueue& queue, const std::string& shape) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    key = shape + ", " + queue.properties().name + ", cuDNN " + std::to_string(cudnnGetVersion()) +
          ", driver " + std::to_string(driver);
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    char name[32];
    std::snprintf(name, sizeof name, "%016llx.plan", static_cast<unsigned long long>(hash));
    const std::lock_guard lock(plan_folder_mutex);
    if (!plan_folder.empty()) path = std::filesystem::path(plan_folder) / name;
  }

  std::string read() const {
    std::ifstream file(path, std::ios::binary);
    std::string first;
    if (path.empty() || !std::getline(file, first) || first != key) return {};
    std::stringstream rest;
    rest << file.rdbuf();
    return rest.str();
  }
  // A folder that cannot be written keeps nothing.
  void write(const std::string& text) const {
    if (path.empty()) return;
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    const std::filesystem::path part = path.string() + "." + std::to_string(getpid());
    std::ofstream file(part, std::ios::binary);
    file << key << "\n" << text;
    file.close();
    if (file)
      std::filesystem::rename(part, path, error);
    else
      std::filesystem::remove(part, error);
  }

  std::string key;
  std::filesystem::path path;  // empty: plans are not kept
};

// Throws CudnnRefusal for engines whose code cuDNN does not compile.
std::string text_of(const CudnnDescriptor& plan) {
  int64_t size = 0;
  check_cudnn(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                       CUDNN_TYPE_CHAR, 0, &size, nullptr),
              "the size of a plan's text");
  std::string text(static_cast<size_t>(size), '\0');
  check_cudnn(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                       CUDNN_TYPE_CHAR, size, &size, text.data()),
              "a plan's text");
  return text;
}

CudnnDescriptor plan_of(const std::string& text, cudnnHandle_t handle) {
  CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
           static_cast<int64_t>(text.size()), text.data());
  plan.finalize();
  return plan;
}

}  // namespace

CudnnPlan make_kept_plan(
    CudaQueue& queue, cudnnHandle_t handle, const std::string& shape, int64_t most,
    const std::function<std::vector<CudnnDescriptor>(const CudnnTarget&)>& propose) {
  const KeptPlan kept(queue, shape);
  CudnnPlan made;
  if (const std::string text = kept.read(); !text.empty()) try {
      made.descriptor = plan_of(text, handle);
      made.workspace = cudnn_workspace(made.descriptor);
      if (made.workspace <= most) return made;
    } catch (const CudnnRefusal&) {  // it is made anew
    }
  made = {};
  made.refusal = "cuDNN has no engine within the contract for this shape";
  try {
    const CudnnTarget target{.handle = handle};
    for (const CudnnDescriptor& configuration : propose(target)) try {
        CudnnDescriptor plan = make_cudnn_plan(configuration, target);
        const int64_t workspace = cudnn_workspace(plan);
        if (workspace > most) {
          made.refusal = "the plan needs " + std::to_string(workspace) + " bytes of workspace";
          continue;
        }
        made = {.descriptor = std::move(plan), .workspace = workspace, .refusal = {}};
        break;
      } catch (const CudnnRefusal& reason) {  // the next configuration may work
        made.refusal = reason.text;
      }
  } catch (const CudnnRefusal& reason) {
    made.refusal = reason.text;
  }
  if (made.descriptor) try {
      kept.write(text_of(made.descriptor));
    } catch (const CudnnRefusal&) {  // this engine's plans have no text
    }
  return made;
}

}  // namespace cuda
}  // namespace weft
