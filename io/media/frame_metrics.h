#pragma once
// Measures how similar two pictures are: PSNR and SSIM of 8-bit RGB frames of equal size.
#include "io/media/frame.h"

namespace weft {

// The mean of (a - b)^2 over all pixels and the three channels.
double mean_squared_error(const Frame& a, const Frame& b);

// The peak signal to noise ratio in dB: 10 log10(255^2 / mse), infinite for 0. For a clip, pass the
// mean of its frames' mean squared errors.
double psnr_db(double mean_squared_error);

// Structural similarity (Wang, Bovik, Sheikh and Simoncelli, "Image quality assessment: from error
// visibility to structural similarity", IEEE TIP 13(4), 2004, equation 13), 1 for equal pictures:
//   SSIM = (2 m_a m_b + C1)(2 s_ab + C2) / ((m_a^2 + m_b^2 + C1)(s_a^2 + s_b^2 + C2)),
// C1 = (0.01 255)^2, C2 = (0.03 255)^2, with means, variances and covariance under an 11x11
// Gaussian window of sigma 1.5, averaged over every window that lies wholly in the picture, at full
// size, as in the authors' ssim.m. It is computed on the luma Y = 0.299 R + 0.587 G + 0.114 B, not
// rounded. If a side has less than 11 pixels, the window has only that many taps along it.
double ssim(const Frame& a, const Frame& b);

}  // namespace weft
