#pragma once
// The pictures of a stream's segments as messages, from the rank that decodes to the first one,
// where a second thread takes them: the first one may wait for the next segment meanwhile.
//
// Bytes per segment: 56 that describe it and 3 w h for each of its pictures, and 8 back, which
// permit the next segment's. So at most one segment's pictures wait to be taken.
#include <exception>
#include <thread>

#include "engine/session/stream_pictures.h"
#include "parallel/communicator.h"

namespace weft {

// On the rank that decodes, in its thread.
class PictureSender {
 public:
  PictureSender(Communicator& ranks, Stream& stream) : ranks_(ranks), stream_(stream) {}
  // Returns before the pictures are taken.
  void send(StreamPictures&& pictures);
  void finish();  // no segment follows; waits until all have been taken

 private:
  void await_permit();

  Communicator& ranks_;
  Stream& stream_;
  StreamPictures sent_;
  Communicator::Pending pending_;  // messages that read `sent_`
  bool is_under_way_ = false;      // not taken yet
};

// On the first rank. It ends with the stream, or when the job does.
class PictureReceiver {
 public:
  // Calls `take` in its own thread. What it throws ends the job. The pictures come from rank
  // `decoder` of `ranks`.
  PictureReceiver(const Communicator& ranks, int decoder, int width, int height, TakePictures take);
  ~PictureReceiver();
  // Waits for the end of the stream. Throws what ended it before.
  void finish();

 private:
  void run();
  void receive_all();

  Communicator ranks_;
  const int decoder_, width_, height_;
  const TakePictures take_;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace weft
