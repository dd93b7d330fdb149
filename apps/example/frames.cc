// Draws a clip with the installed pocket model and writes its frames as frame0.ppm, frame1.ppm, ...
#include <weft/engine/generation/generator.h>

#include <cstdio>
#include <fstream>

struct Pictures : weft::FrameSink {
  int count = 0;
  void push(const weft::Frame& frame) override {
    std::ofstream file("frame" + std::to_string(count++) + ".ppm", std::ios::binary);
    file << "P6\n" << frame.width << " " << frame.height << "\n255\n";
    file.write(reinterpret_cast<const char*>(frame.rgb.data()), std::ssize(frame.rgb));
  }
  std::string finish() override { return ""; }
};

int main() {
  weft::Generator generator(MODEL, {});
  weft::Request request;
  request.prompt = "a big red ball, moving left on a navy background";
  request.frames = 5;
  request.steps = 4;
  request.seed = 7;
  Pictures pictures;
  const weft::RunResult result = generator.run(request, &pictures);
  std::printf("%d frames, hash %s\n", result.frames, result.framehash.c_str());
}
