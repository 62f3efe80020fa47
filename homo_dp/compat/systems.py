"""The other systems whose files can be given in the place of ours."""

from homo_dp.compat.book_chapter import BOOK_CHAPTER
from homo_dp.compat.federatedscope import FEDERATEDSCOPE
from homo_dp.compat.primihub.task_file import PRIMIHUB

SYSTEMS = (PRIMIHUB, FEDERATEDSCOPE, BOOK_CHAPTER)
